"""A chat-completions server with a known speed, for tests of what measures servers."""

import asyncio
import hashlib
import json

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route


class ChatServer:
    """`lanes` requests at a time, `first_s` to the first token and `token_s` to each further one; remembers bodies."""

    def __init__(self, *, lanes=4, first_s=0.02, token_s=0.001, fail_every=0, metrics=""):
        self.lanes, self.first_s, self.token_s, self.fail_every = lanes, first_s, token_s, fail_every
        self.bodies, self.metrics_text, self.most_at_once, self.now = [], metrics, 0, 0
        self.gate, self.salt = None, ""

    def app(self):
        return Starlette(
            routes=[
                Route("/v1/models", lambda _: JSONResponse({"data": [{"id": "stub"}]})),
                Route("/metrics", lambda _: PlainTextResponse(self.metrics_text)),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
            ]
        )

    async def chat(self, request):
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.gate = self.gate or asyncio.Semaphore(self.lanes)
        if self.fail_every and len(self.bodies) % self.fail_every == 0:
            return JSONResponse({"error": {"message": "stub"}}, 503)
        return StreamingResponse(self.events(body), media_type="text/event-stream")

    async def events(self, body):
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        async with self.gate:
            await asyncio.sleep(self.first_s)
            url = body["messages"][0]["content"][0]["video_url"]["url"]
            word = hashlib.md5((self.salt + url.split("/")[-1][:60]).encode()).hexdigest()[:6]
            for _ in range(body["max_tokens"]):
                yield event({"choices": [{"delta": {"content": word + " "}}]})
                await asyncio.sleep(self.token_s)
        usage = {"prompt_tokens": 11, "completion_tokens": body["max_tokens"]}
        yield event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"
        self.now -= 1


def event(payload):
    return f"data: {json.dumps(payload)}\n\n"
