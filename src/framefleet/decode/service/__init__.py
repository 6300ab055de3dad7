"""One process per GPU that owns all decoding there; its clients hand it clips and map the finished frames.

python -m framefleet.decode.service --socket PATH [--gpu N]        `server`, under a `process.DecodeServiceProcess`
ServiceClient(PATH).decode(clip, options)                          `client`, from any thread of any process
"""
