"""NVDEC: what it takes (`caps`), kept decoders (`lanes`), and the packets to feed them (`bitstream`)."""
