"""The proxy over the loopback in front of stub replicas: the right answer to each kind of trouble."""

import asyncio
import hashlib
import json
import logging
from collections import Counter

import httpx
import pytest
from stub_replicas import chat, large_chat, proxied, until

from framefleet.serve.cost import HEAD_BYTES, facts_of_ends, work_of

CHAT = "/v1/chat/completions"


def run(story):
    """A test that is a coroutine."""
    return asyncio.run(asyncio.wait_for(story, 60))


async def ask(client, **kwargs):
    return await client.post(CHAT, json=chat(), **kwargs)


def test_answers_pass_and_tell_who_gave_them():
    async def story():
        async with proxied("ok", "ok") as (stubs, _, client):
            answer = await ask(client)
            assert answer.status_code == 200
            assert answer.headers["x-framefleet-replica"] == answer.json()["by"]
            assert answer.headers["x-framefleet-attempts"] == "1"
            assert len(stubs[0].chats) + len(stubs[1].chats) == 1
            assert (await client.get("/v1/models")).json()["data"] == [{"id": "stub"}]
            completion = await client.post("/v1/completions?a=1%2F2", json={"prompt": "x"})
            assert completion.json()["by"] in ("r0", "r1")
            assert [a.path for s in stubs for a in s.asked if "v1/completions" in a.path] == ["/v1/completions?a=1%2F2"]

    run(story())


def test_streams_pass_piece_by_piece():
    async def story():
        async with proxied("sse") as (stubs, _, client):
            stubs[0].delay_s = 0.05
            pieces = []
            async with client.stream("POST", CHAT, json=chat(stream=True)) as answer:
                assert answer.headers["content-type"] == "text/event-stream"
                async for piece in answer.aiter_raw():
                    pieces.append(piece)
            assert len(pieces) >= 3
            assert b"".join(pieces) == b"data: r0 0\n\ndata: r0 1\n\ndata: r0 2\n\ndata: [DONE]\n\n"

    run(story())


def test_shares_are_even():
    async def story():
        async with proxied("ok", "ok", "ok", "ok") as (stubs, _, client):
            await asyncio.gather(*(ask(client) for _ in range(80)))
            for _ in range(80):
                await ask(client)
            counts = [len(stub.chats) for stub in stubs]
            assert sum(counts) == 160
            assert sum((n - 40) ** 2 / 40 for n in counts) < 16.3  # 3 degrees of freedom, p = 0.001

    run(story())


def test_a_slow_replica_gets_less():
    async def story():
        async with proxied("ok", "ok", "ok") as (stubs, _, client):
            stubs[0].delay_s = 0.5
            for stub in stubs[1:]:
                stub.delay_s = 0.01

            async def worker():
                for _ in range(20):
                    await ask(client)

            await asyncio.gather(*(worker() for _ in range(6)))
            slow, *quick = (len(stub.chats) for stub in stubs)
            assert slow < min(quick) / 2
            assert slow + sum(quick) == 120

    run(story())


def test_heavy_requests_and_light_ones_share_by_work_not_by_count():
    async def story():
        async with proxied("ok", "ok") as (stubs, _, client):
            for stub in stubs:
                stub.delay_s = 0.3
            heavy = chat(media_io_kwargs={"video": {"num_frames": 2000}}, max_tokens=1)
            light = chat(media_io_kwargs={"video": {"num_frames": 1}}, max_tokens=1)
            one = asyncio.create_task(client.post(CHAT, json=heavy))
            await until(lambda: any(stub.chats for stub in stubs))
            busy, idle = sorted(stubs, key=lambda stub: -len(stub.chats))
            await asyncio.gather(one, *(client.post(CHAT, json=light) for _ in range(10)))
            assert (len(busy.chats), len(idle.chats)) == (1, 10)

    run(story())


@pytest.mark.parametrize("trouble", ["dies", "500", "503", "429"])
def test_another_replica_answers_instead_and_nothing_is_done_twice(trouble):
    async def story():
        async with proxied(trouble, "ok") as (stubs, _, client):
            answers = await asyncio.gather(*(ask(client) for _ in range(12)))
            assert [answer.status_code for answer in answers] == [200] * 12
            assert {answer.json()["by"] for answer in answers} == {"r1"}
            assert len(stubs[1].chats) == 12
            assert len(stubs[0].chats) >= 1
            text = (await client.get("/metrics")).text
            reason = {"dies": "lost", "429": "busy"}.get(trouble, "5xx")
            assert f'framefleet_proxy_retries_total{{reason="{reason}",replica="r0"}}' in text
            assert (f'replica_failures_total{{reason="{reason}"' in text) == (trouble != "429")

    run(story())


def test_a_replica_that_is_not_there_is_passed_over():
    async def story():
        async with proxied("ok", "ok", unhealthy_after=10**6) as (stubs, proxy, client):
            await stubs[0].stop()
            answers = await asyncio.gather(*(ask(client) for _ in range(12)))
            assert {(a.status_code, a.json()["by"]) for a in answers} == {(200, "r1")}
            assert proxy.dispatch.circuits["r0"].num_failures >= 1

    run(story())


def test_a_4xx_is_the_clients_and_says_nothing_against_the_replica():
    async def story():
        async with proxied("400", "400", max_failures=2) as (stubs, proxy, client):
            for _ in range(20):
                answer = await ask(client)
                assert (answer.status_code, answer.json()) == (400, {"error": {"message": "stub"}})
            assert len(stubs[0].chats) + len(stubs[1].chats) == 20
            assert [c.num_failures for c in proxy.dispatch.circuits.values()] == [0, 0]

    run(story())


def test_a_request_that_fails_everywhere_is_to_blame_itself():
    async def story():
        async with proxied("500", "500", max_failures=2) as (stubs, _, client):
            for _ in range(10):
                answer = await ask(client)
                assert (answer.status_code, answer.headers["x-framefleet-attempts"]) == (500, "3")
            assert (len(stubs[0].chats), len(stubs[1].chats)) == (10, 10)
            assert {r["circuit"] for r in (await client.get("/fleet")).json()["replicas"]} == {"closed"}

    run(story())


@pytest.mark.parametrize("mode", ["ok", "500", "400"])
def test_answers_that_come_in_parts_are_whole(mode):
    async def story():
        async with proxied(mode, health_timeout_s=5) as (stubs, _, client):
            whole = (await ask(client)).content
            stubs[0].split_s = 0.05
            answer = await ask(client)
            assert answer.content == whole
            assert answer.status_code == (200 if mode == "ok" else int(mode))

    run(story())


def test_an_answer_that_is_cut_off_never_looks_whole_and_is_not_asked_for_again():
    async def story():
        async with proxied("cut", "cut") as (stubs, _, client):
            received = b""
            with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012
                async with client.stream("POST", CHAT, json=chat(stream=True)) as answer:
                    async for piece in answer.aiter_raw():
                        received += piece
            assert b"data: r" in received
            assert b'"type":"EngineLost"' in received
            assert b"[DONE]" not in received
            assert len(stubs[0].chats) + len(stubs[1].chats) == 1
            for stub in stubs:
                stub.mode = "cut_length"
            with pytest.raises(httpx.RemoteProtocolError):
                await ask(client)
            assert len(stubs[0].chats) + len(stubs[1].chats) == 2

    run(story())


def test_a_frozen_replica_is_given_up_after_the_limit_and_left_alone():
    async def story():
        async with proxied("frozen", "ok", first_byte_s=0.2, max_failures=2, open_s=30) as (stubs, _, client):
            answers = await asyncio.gather(*(ask(client) for _ in range(20)))
            codes = Counter(answer.status_code for answer in answers)
            assert set(codes) == {200, 504}
            assert codes[504] == len(stubs[0].chats)
            assert len(stubs[1].chats) == codes[200]  # nothing that timed out was done again
            assert [(await ask(client)).status_code for _ in range(10)] == [200] * 10
            await until(lambda: stubs[0].num_running == 0)

    run(story())


def test_what_waits_for_a_replica_that_stops_answering_goes_to_another():
    async def story():
        async with proxied("frozen", "ok", health_timeout_s=0.1) as (stubs, proxy, client):
            asking = [asyncio.create_task(ask(client)) for _ in range(10)]
            await until(lambda: stubs[0].chats)
            stubs[0].health = "frozen"
            answers = await asyncio.gather(*asking)
            assert {(a.status_code, a.json()["by"]) for a in answers} == {(200, "r1")}
            assert proxy.fleet.replicas()[0].state == "lost"
            stubs[0].mode = stubs[0].health = "ok"
            await until(lambda: proxy.fleet.replicas()[0].state == "ready")

    run(story())


def test_a_dead_engine_behind_a_healthy_api_is_found_by_a_real_request():
    async def story():
        async with proxied("ok", "ok", probe_s=0.1, probe_timeout_s=0.2) as (stubs, proxy, client):
            assert stubs[0].chats  # readiness was proven by a request
            stubs[0].mode = "frozen"
            await until(lambda: proxy.fleet.replicas()[0].state == "lost")
            assert {(await ask(client)).json()["by"] for _ in range(10)} == {"r1"}
            stubs[0].mode = "ok"
            await until(lambda: proxy.fleet.replicas()[0].state == "ready")

    run(story())


def test_a_replica_that_never_proves_itself_is_never_ready():
    async def story():
        async with proxied("ok", probe_s=0.1, probe_timeout_s=0.2) as (stubs, proxy, _):
            from framefleet.serve.proxy import Proxy
            from framefleet.serve.replica import StaticFleet

            stubs[0].mode = "500"
            async with Proxy(StaticFleet.of_urls([stubs[0].url]), proxy.settings) as other:
                await until(lambda: len(stubs[0].chats) > 3)
                assert other.fleet.replicas()[0].state == "starting"
            stubs[0].mode = "ok"

    run(story())


def test_a_circuit_opens_and_closes_again():
    async def story():
        async with proxied("dies", "ok", max_failures=2, open_s=10) as (stubs, proxy, client):
            now_s = 0.0
            proxy.dispatch.now_s = lambda: now_s
            while (await client.get("/fleet")).json()["replicas"][0]["circuit"] == "closed":
                await ask(client)
            before = len(stubs[0].chats)
            assert [(await ask(client)).json()["by"] for _ in range(5)] == ["r1"] * 5
            assert len(stubs[0].chats) == before
            stubs[0].mode = "ok"
            now_s = 10.0
            while (await ask(client)).json()["by"] != "r0":
                pass
            assert (await client.get("/fleet")).json()["replicas"][0]["circuit"] == "closed"

    run(story())


def test_without_any_replica_it_says_so():
    async def story():
        async with proxied("dies", queue_timeout_s=0.3, unhealthy_after=1) as (stubs, proxy, client):
            lost = await ask(client)
            assert (lost.status_code, len(stubs[0].chats)) == (502, 3)  # the only one, so it is tried again
            await stubs[0].stop()
            await until(lambda: proxy.fleet.replicas()[0].state == "lost")
            assert (await client.get("/health")).status_code == 503
            answer = await ask(client)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            await stubs[0].start()
            stubs[0].mode = "ok"
            await until(lambda: proxy.fleet.replicas()[0].state == "ready")
            assert (await ask(client)).status_code == (await client.get("/health")).status_code == 200

    run(story())


def test_draining_lets_what_is_there_end_and_sends_nothing_new():
    async def story():
        async with proxied("ok", "ok") as (stubs, proxy, client):
            for stub in stubs:
                stub.delay_s = 0.3
            asking = [asyncio.create_task(ask(client)) for _ in range(8)]
            await until(lambda: len(stubs[0].chats) + len(stubs[1].chats) == 8)
            answer = await client.post("/fleet/r0/drain")
            assert answer.json()["replicas"][0]["state"] == "draining"
            before = len(stubs[0].chats)
            assert before > 0
            more = await asyncio.gather(*(ask(client) for _ in range(6)), *asking)
            assert {one.status_code for one in more} == {200}
            assert len(stubs[0].chats) == before
            await until(lambda: proxy.fleet.replicas()[0].state == "drained")
            await client.post("/fleet/r0/undrain")
            stubs[0].delay_s = stubs[1].delay_s = 0
            assert {(await ask(client)).json()["by"] for _ in range(30)} == {"r0", "r1"}
            assert (await client.post("/fleet/r9/drain")).status_code == 409
            assert (await client.post("/fleet/r0/explode")).status_code == 404

    run(story())


@pytest.mark.parametrize("mode", ["frozen", "sse"])
def test_a_client_that_leaves_ends_the_work_and_frees_it(mode, caplog):
    """While waiting for the first byte, and in the middle of the answer."""

    async def story():
        async with proxied(mode) as (stubs, proxy, client):
            stubs[0].delay_s, stubs[0].events = 0.05, 1000
            async with asyncio.timeout(10):
                asking = asyncio.create_task(ask(client))
                await until(lambda: stubs[0].num_running == 1)
                assert proxy.dispatch.outstanding.work_of("r0") > 0
                await asyncio.sleep(0.1)
                asking.cancel()
                async with asyncio.timeout(1):
                    await until(lambda: stubs[0].num_running == 0 and proxy.dispatch.outstanding.total_in_flight == 0)
            assert stubs[0].num_left == 1
            assert proxy.dispatch.outstanding.work_of("r0") == 0
            assert proxy.dispatch.circuits["r0"].num_failures == 0

    with caplog.at_level(logging.INFO, "framefleet.serve.requests"):
        run(story())
    lines = [json.loads(record.message) for record in caplog.records if record.name == "framefleet.serve.requests"]
    assert [line["end"] for line in lines] == ["client_gone"]


def test_a_client_that_leaves_after_done_has_been_answered(caplog):
    async def story():
        async with proxied("sse") as (stubs, proxy, client):
            stubs[0].delay_s = 0.3
            proxy.dispatch.circuits["r0"].num_failures = 3
            async with client.stream("POST", CHAT, json=chat(stream=True)) as answer:
                async for piece in answer.aiter_raw():
                    if b"[DONE]" in piece:
                        break
            await until(lambda: proxy.dispatch.outstanding.total_in_flight == 0)
            assert proxy.dispatch.circuits["r0"].num_failures == 0

    with caplog.at_level(logging.INFO, "framefleet.serve.requests"):
        run(story())
    assert [json.loads(r.message)["end"] for r in caplog.records if "requests" in r.name] == ["answered"]


def test_a_client_may_ask_before_it_sends():
    """`Expect: 100-continue`, as curl does for large bodies; and the replica is not asked again."""

    async def story():
        async with proxied("ok") as (stubs, _, client):
            reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
            head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 2000000\r\nexpect: 100-continue\r\n\r\n"
            writer.write(head.encode())
            async with asyncio.timeout(10):
                assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
                writer.write(bytes(2_000_000))
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.close()
            assert stubs[0].chats[0].header("expect") == []
            assert stubs[0].chats[0].num_bytes == 2_000_000

    run(story())


def test_a_replica_that_answers_is_not_probed():
    async def story():
        async with proxied("ok", probe_s=0.01) as (stubs, proxy, _):
            proxy.dispatch.answered_s["r0"] = proxy.dispatch.now_s() + 10**6
            await until(lambda: stubs[0].num_running == 0)
            await until_looked(stubs[0], 2)
            probes = len(stubs[0].chats)
            await until_looked(stubs[0], 5)
            assert len(stubs[0].chats) == probes
            proxy.dispatch.answered_s.clear()
            await until(lambda: len(stubs[0].chats) > probes)

    run(story())


async def until_looked(stub, times):
    """Until /health was asked so many times more."""
    before = len(stub.asked) - len(stub.chats)
    await until(lambda: len(stub.asked) - len(stub.chats) >= before + times)


def test_a_client_that_leaves_the_queue_is_forgotten():
    async def story():
        async with proxied("ok", max_in_flight=1) as (stubs, proxy, client):
            stubs[0].delay_s = 0.4
            first = asyncio.create_task(ask(client))
            await until(lambda: stubs[0].num_running == 1)
            second = asyncio.create_task(ask(client))
            await until(lambda: proxy.admission.num_waiting() == 1)
            second.cancel()
            async with asyncio.timeout(1):
                await until(lambda: proxy.admission.num_waiting() == 0)
            assert (await first).status_code == 200
            assert len(stubs[0].chats) == 1

    run(story())


def test_a_client_that_leaves_in_its_upload_is_forgotten():
    async def story():
        async with proxied("ok") as (_, proxy, client):
            _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
            writer.write(
                f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 50000000\r\n\r\n".encode() + bytes(3_000_000)
            )
            await writer.drain()
            await until(lambda: proxy.dispatch.outstanding.total_in_flight == 1)
            writer.transport.abort()
            async with asyncio.timeout(1):
                await until(lambda: proxy.dispatch.outstanding.total_in_flight == 0)

    run(story())


def test_a_full_queue_answers_429_and_live_goes_first():
    async def story():
        async with proxied("ok", max_in_flight=1, max_queue=2) as (stubs, proxy, client):
            stubs[0].delay_s = 0.2
            order = []

            async def asking(name, priority):
                answer = await ask(client, headers={"X-Framefleet-Priority": priority, "X-Request-Id": name})
                order.append((name, answer.status_code, answer.headers.get("retry-after", "")))

            async def come(name, priority, waiting):
                tasks.append(asyncio.create_task(asking(name, priority)))
                await until(lambda: proxy.admission.num_waiting() == waiting and stubs[0].num_running)

            tasks = []
            await come("first", "batch", 0)
            await come("batch", "batch", 1)
            await come("live", "live", 2)
            await asking("late", "batch")
            await asyncio.gather(*tasks)
            assert order[0] == ("late", 429, order[0][2])
            assert int(order[0][2]) >= 1
            assert [(name, status) for name, status, _ in order[1:]] == [("first", 200), ("live", 200), ("batch", 200)]
            assert [one.header("x-request-id") for one in stubs[0].chats] == [["first"], ["live"], ["batch"]]

    run(story())


def test_keys_are_asked_for_limited_and_not_passed_on(tmp_path):
    sums = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("s3cret", "r00t")}
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[keys.team]\nsha256 = "{sums["s3cret"]}"\nmax_concurrent = 1\npriority = "batch"\n'
        f'[keys.ops]\nsha256 = "{sums["r00t"]}"\nis_admin = true\n'
    )
    team, ops = ({"Authorization": f"Bearer {key}"} for key in sums)

    async def story():
        async with proxied("ok", api_keys_file=str(path), upstream_api_key="inner") as (stubs, _, client):
            assert (await ask(client)).status_code == 401
            assert (await ask(client, headers={"Authorization": "Bearer wrong"})).status_code == 401
            assert (await client.get("/v1/models")).status_code == 401
            stubs[0].delay_s = 0.2
            answers = await asyncio.gather(*(ask(client, headers=h) for h in (team, team, ops, ops)))
            assert sorted(a.status_code for a in answers) == [200, 200, 200, 429]
            assert {one.header("authorization")[0] for one in stubs[0].chats} == {"Bearer inner"}
            assert (await client.post("/fleet/r0/drain", headers=team)).status_code == 403
            assert (await client.post("/fleet/r0/drain", headers=ops)).status_code == 200

    run(story())


def test_large_bodies_arrive_as_they_were_sent():
    body = large_chat(20_000_000)

    async def story():
        async with proxied("ok") as (stubs, _, client):
            answer = await client.post(CHAT, content=body)
            assert answer.json()["sha256"] == hashlib.sha256(body).hexdigest()

            async def pieces():
                for i in range(0, len(body), 300_000):
                    yield body[i : i + 300_000]

            answer = await client.post(CHAT, content=pieces())
            assert answer.json()["sha256"] == hashlib.sha256(body).hexdigest()
            assert stubs[0].chats[1].header("transfer-encoding") == ["chunked"]

    run(story())


def test_a_large_body_is_priced_by_its_end_too():
    body = large_chat(6_000_000)
    head, tail = body[:HEAD_BYTES], body[-HEAD_BYTES:]
    by_head, by_both = (work_of(facts_of_ends(head, end, len(body))) for end in (b"", tail))
    assert by_both < by_head / 1.5

    async def story():
        async with proxied("frozen") as (_, proxy, client):
            seen = set()

            def is_settled():
                seen.add(proxy.dispatch.outstanding.work_of("r0"))
                return by_both in seen

            async def pieces():
                for i in range(0, len(body), 1_000_000):
                    yield body[i : i + 1_000_000]
                    await asyncio.sleep(0.02)

            sized = {"Content-Length": str(len(body))}
            asking = asyncio.create_task(client.post(CHAT, content=pieces(), headers=sized))
            await until(is_settled)
            assert seen <= {0, by_head, by_both}
            asking.cancel()

    run(story())


@pytest.mark.parametrize("trouble", ["dies", "half_upload", "500"])
def test_large_bodies_are_sent_again_from_what_was_kept(trouble):
    body = large_chat(9_000_000)

    async def story():
        async with proxied(trouble, "ok", spool_memory_bytes=1_000_000) as (stubs, _, client):
            for _ in range(6):
                answer = await client.post(CHAT, content=body)
                assert answer.json() == {"by": "r1", "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            assert stubs[0].chats

    run(story())


def test_a_large_body_that_found_no_room_gets_one_attempt():
    async def story():
        async with proxied("dies", spool_memory_bytes=0, spool_disk_bytes=100_000) as (stubs, _, client):
            answer = await client.post(CHAT, content=large_chat(3_000_000))
            assert (answer.status_code, len(stubs[0].chats)) == (502, 1)
            assert (await ask(client)).status_code == 502
            assert len(stubs[0].chats) == 4  # a small one is kept in any case

    run(story())


@pytest.mark.parametrize("is_chunked", [False, True])
def test_too_large_a_body_is_413_naming_the_limit(is_chunked):
    async def story():
        async with proxied("ok", max_body_bytes=2_000_000) as (stubs, _, client):
            body = large_chat(5_000_000)

            async def pieces():
                for i in range(0, len(body), 100_000):
                    yield body[i : i + 100_000]

            answer = await client.post(CHAT, content=pieces() if is_chunked else body)
            assert answer.status_code == 413
            assert "1.9 MiB (max_body_bytes)" in answer.json()["error"]["message"]
            assert (await ask(client)).status_code == 200
            assert all(one.num_bytes < 2_000_000 for one in stubs[0].chats)

    run(story())


@pytest.mark.parametrize(
    "lines",
    [
        "content-length: 5\r\ntransfer-encoding: chunked",
        "content-length: 5\r\ncontent-length: 6",
        "content-length: +5",
        "transfer-encoding: chunked, identity",
    ],
)
def test_a_length_that_can_be_read_in_two_ways_is_refused(lines):
    async def story():
        async with proxied("ok") as (stubs, _, client):
            reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
            writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{lines}\r\n\r\n5\r\nabcde\r\n0\r\n\r\n".encode())
            async with asyncio.timeout(10):
                assert b" 400 " in await reader.readline()
            writer.close()
            assert stubs[0].chats == []

    run(story())


def test_a_replica_may_refuse_before_the_upload_has_ended():
    async def story():
        async with proxied("early", "early") as (_, proxy, client):
            answer = await client.post(CHAT, content=large_chat(8_000_000))
            assert answer.status_code == 400
            assert [c.num_failures for c in proxy.dispatch.circuits.values()] == [0, 0]

    run(story())


def test_a_client_that_stops_in_its_upload_is_told():
    async def story():
        async with proxied("ok", client_idle_s=0.2) as (_, proxy, client):
            for num_bytes in (10, 3_000_000):
                reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
                head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 9000000\r\n\r\n"
                writer.write(head.encode() + bytes(num_bytes))
                async with asyncio.timeout(10):
                    assert b" 408 " in await reader.readline()
                writer.close()
            assert proxy.dispatch.circuits["r0"].num_failures == 0

    run(story())


def test_a_replica_that_takes_no_more_of_the_upload_is_late():
    async def story():
        async with proxied("stops_reading", first_byte_s=0.3) as (_, proxy, client):
            answer = await client.post(CHAT, content=large_chat(16_000_000))
            assert answer.status_code == 504
            assert proxy.dispatch.circuits["r0"].num_failures == 1

    run(story())


def test_limits_on_pauses_and_on_the_whole():
    async def story():
        async with proxied("sse", between_bytes_s=0.2) as (stubs, _, client):
            stubs[0].delay_s = 1
            with pytest.raises(httpx.RemoteProtocolError):
                await ask(client)
        async with proxied("frozen", total_s=0.3) as (stubs, _, client):
            assert (await ask(client)).status_code == 504
            await until(lambda: stubs[0].num_running == 0)

    run(story())


def test_headers_of_a_connection_stay_with_it():
    async def story():
        async with proxied("ok") as (stubs, _, client):
            stubs[0].extra_headers = "connection: keep-alive, x-inner\r\nx-inner: 1\r\nkeep-alive: 5\r\nx-outer: 2\r\n"
            given = {
                "Connection": "keep-alive, X-Hop",
                "X-Hop": "1",
                "TE": "trailers",
                "X-Stays": "2",
                "Upgrade": "h2c",
            }
            answer = await ask(client, headers=given)
            assert "x-inner" not in answer.headers
            assert "keep-alive" not in answer.headers
            assert answer.headers["x-outer"] == "2"
            sent = stubs[0].chats[0]
            assert (sent.header("x-hop"), sent.header("te"), sent.header("upgrade")) == ([], [], [])
            assert sent.header("x-stays") == ["2"]
            assert sent.header("host") == [stubs[0].url.removeprefix("http://")]
            assert sent.header("x-forwarded-for") == ["127.0.0.1"]

    run(story())


def test_a_trace_passes_or_begins_here():
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def story():
        async with proxied("ok") as (stubs, _, client):
            await ask(client, headers={"traceparent": trace, "tracestate": "a=b", "x-request-id": "mine"})
            answer = await ask(client, headers={"traceparent": "rubbish", "x-request-id": "bad id"})
            first, second = stubs[0].chats
            assert (first.header("traceparent"), first.header("tracestate")) == ([trace], ["a=b"])
            assert first.header("x-request-id") == ["mine"]
            assert len(second.header("traceparent")) == 1
            assert second.header("traceparent")[0].startswith("00-")
            assert [answer.headers["x-request-id"]] == second.header("x-request-id") != ["bad id"]

    run(story())


def test_compressed_answers_pass_unchanged():
    async def story():
        async with proxied("gzip") as (_, _, client):
            answer = await ask(client, headers={"Accept-Encoding": "gzip"})
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.json()["by"] == "r0"

    run(story())


def test_one_line_a_request_whatever_its_end(caplog):
    async def story():
        async with proxied("dies", "ok") as (stubs, _, client):
            while (await ask(client)).headers["x-framefleet-attempts"] == "1":
                pass
            stubs[1].mode = "400"
            stubs[0].mode = "400"
            await ask(client)
            assert (await client.get("/v1/other")).status_code == 404
            assert (await client.get(CHAT)).status_code == 405

    with caplog.at_level(logging.INFO, "framefleet.serve.requests"):
        run(story())
    *_, retried, refused = [json.loads(r.message) for r in caplog.records if r.name == "framefleet.serve.requests"]
    assert (retried["status"], retried["end"], retried["replica"]) == (200, "answered", "r1")
    assert retried["attempts"] == ["r0:lost"]
    assert retried["received_bytes"] > 0 < retried["sent_bytes"]
    assert set(retried["seconds"]) == {"queue", "first_byte", "total"}
    assert (refused["status"], refused["attempts"]) == (400, [])


def test_metrics_can_be_read_by_prometheus():
    from prometheus_client.parser import text_string_to_metric_families

    async def story():
        async with proxied("ok", "ok") as (_, _, client):
            await ask(client)
            return (await client.get("/metrics")).text

    families = {family.name: family for family in text_string_to_metric_families(run(story()))}
    values = {(s.name, *s.labels.values()): s.value for family in families.values() for s in family.samples}
    assert sum(v for k, v in values.items() if k[0] == "framefleet_proxy_requests_total") == 1
    assert values["framefleet_proxy_replica_state", "r0", "ready"] == 1
    assert values["framefleet_proxy_capacity",] == 128
    assert {"framefleet_proxy_queue_seconds", "framefleet_proxy_upstream_first_byte_seconds"} < set(families)
