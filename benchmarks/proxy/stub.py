"""An upstream that costs next to nothing: reads a request, answers a fixed completion. Prints its port."""

import asyncio
import re

BODY = b'{"choices": [{"message": {"role": "assistant", "content": "a car"}, "finish_reason": "stop"}]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Stub(asyncio.BufferedProtocol):
    """One connection. Bodies have a content-length; their bytes are counted and dropped."""

    def connection_made(self, transport):
        self.transport, self.room = transport, bytearray(1 << 20)
        self.head, self.left = b"", None

    def get_buffer(self, _):
        return self.room

    def buffer_updated(self, num_bytes):
        if self.left is None:
            self.head += self.room[:num_bytes]
            head, end, body = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            self.left, num_bytes = int(length[1]) if length else 0, len(body)
        self.left -= num_bytes
        if self.left <= 0:
            self.transport.write(ANSWER)
            self.head, self.left = b"", None


async def main():
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
