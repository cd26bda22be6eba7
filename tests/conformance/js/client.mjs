// Every check of the client against a target, as JSON.
import assert from "node:assert/strict";
import * as grpc from "@grpc/grpc-js";
import { methods, raw } from "./methods.mjs";

// Catches hangs only.
const LIMIT_MS = 60_000;

class Peer {
  constructor(target, authority) {
    this.client = new grpc.Client(target, grpc.credentials.createInsecure(), {
      "grpc.default_authority": authority,
      "grpc.max_receive_message_length": -1,
      "grpc.max_send_message_length": -1,
      "grpc.enable_retries": 0,
    });
  }

  // Resolves with {code, details, answer, header, trailer, messages} however the call ends.
  call(name, message, { metadata = new grpc.Metadata(), options = {}, use = () => {} } = {}) {
    const [up, down] = methods[name] ?? [false, false];
    const { path } = raw(name, up, down);
    const same = (bytes) => bytes;
    const full = { deadline: Date.now() + LIMIT_MS, ...options };
    return new Promise((resolve) => {
      const found = { messages: [], header: undefined };
      const done = (error, answer) => {
        found.answer = answer;
      };
      const kinds = {
        "false,false": () =>
          this.client.makeUnaryRequest(path, same, same, message, metadata, full, done),
        "true,false": () =>
          this.client.makeClientStreamRequest(path, same, same, metadata, full, done),
        "false,true": () =>
          this.client.makeServerStreamRequest(path, same, same, message, metadata, full),
        "true,true": () => this.client.makeBidiStreamRequest(path, same, same, metadata, full),
      };
      const call = kinds[`${up},${down}`]();
      call.on("metadata", (header) => {
        found.header = header;
      });
      call.on("error", () => {});
      if (down) call.on("data", (data) => found.messages.push(data.toString()));
      call.on("status", ({ code, details, metadata: trailer }) => {
        // After the callback, which unary calls get with the status.
        setImmediate(() => resolve({ ...found, code, details, trailer }));
      });
      use(call);
    });
  }

  async ok(name, message, options) {
    const found = await this.call(name, message, options);
    assert.equal(found.code, grpc.status.OK, found.details);
    return found;
  }

  async counts(options) {
    const { answer } = await this.ok("Counts", Buffer.alloc(0), { options });
    return JSON.parse(answer.toString());
  }

  async untilCounts(holds) {
    while (!holds(await this.counts())) await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

async function cancelled(peer, name, message) {
  const before = await peer.counts();
  let running;
  const ended = peer.call(name, message, {
    use: (call) => {
      running = call;
    },
  });
  await peer.untilCounts(({ started }) => started > before.started);
  running.cancel();
  assert.equal((await ended).code, grpc.status.CANCELLED);
  await peer.untilCounts(({ cancelled: now }) => now > before.cancelled);
}

function pingPong(peer, turns) {
  return peer.ok("Bidi", undefined, {
    use: (call) => {
      let turn = 0;
      const next = () => (turn < turns ? call.write(Buffer.from(`turn ${turn}`)) : call.end());
      call.on("data", (data) => {
        if (data.toString() === "end") return;
        assert.equal(data.toString(), `turn ${turn}`);
        turn += 1;
        next();
      });
      next();
    },
  });
}

const checks = {
  async unary(peer) {
    const { answer } = await peer.ok("Unary", Buffer.from("hello"));
    assert.equal(answer.toString(), "hello");
  },
  async "empty messages"(peer) {
    assert.equal((await peer.ok("Unary", Buffer.alloc(0))).answer.length, 0);
  },
  async "metadata, binary too"(peer) {
    const blob = Buffer.from([0, 1, 2, 0xff]);
    const metadata = new grpc.Metadata();
    metadata.add("echo-a", "1");
    metadata.add("echo-b-bin", blob);
    metadata.add("echo-b-bin", Buffer.from([9]));
    const { header, trailer } = await peer.ok("Unary", Buffer.alloc(0), { metadata });
    assert.deepEqual(header.get("echo-a"), ["1"]);
    assert.deepEqual(header.get("echo-b-bin"), [blob, Buffer.from([9])]);
    assert.deepEqual(trailer.get("trail-echo-b-bin"), [blob, Buffer.from([9])]);
  },
  async "every status with its text"(peer) {
    for (let code = 1; code <= 16; code += 1) {
      const metadata = new grpc.Metadata();
      metadata.add("fail-code", String(code));
      const text = `${code}: 100% caf\u00e9\n\u{1f600}`;
      const found = await peer.call("Fail", Buffer.from(text), { metadata });
      assert.deepEqual([found.code, found.details], [code, text]);
    }
  },
  async "unknown method"(peer) {
    assert.equal((await peer.call("NoSuch", Buffer.alloc(0))).code, grpc.status.UNIMPLEMENTED);
  },
  async "client stream"(peer) {
    const { answer } = await peer.ok("ClientStream", undefined, {
      use: (call) => {
        for (let size = 0; size < 100; size += 1) call.write(Buffer.alloc(size));
        call.end();
      },
    });
    assert.equal(answer.toString(), "100 4950");
  },
  async "server stream"(peer) {
    const { messages } = await peer.ok("ServerStream", Buffer.from("300 2000"));
    assert.deepEqual(messages.map((text) => text.length), Array(300).fill(2000));
    messages.forEach((text, number) => assert.ok(text.startsWith(`${number}.`)));
  },
  async "bidirectional ping-pong"(peer) {
    assert.equal((await pingPong(peer, 100)).messages.length, 101);
  },
  async "early end of a bidirectional stream"(peer) {
    const use = (call) => call.write(Buffer.from("only"));
    assert.deepEqual((await peer.ok("BidiEarly", undefined, { use })).messages, ["only"]);
  },
  async "large message 16 MiB"(peer) {
    const message = Buffer.alloc(16 << 20, "0123456789abcdef");
    assert.ok((await peer.ok("Unary", message)).answer.equals(message));
  },
  async "deadline passes"(peer) {
    const options = { deadline: Date.now() + 300 };
    const found = await peer.call("Block", Buffer.alloc(0), { options });
    assert.equal(found.code, grpc.status.DEADLINE_EXCEEDED);
  },
  async "deadline is forwarded"(peer) {
    const { left_ms: left } = await peer.counts({ deadline: Date.now() + 30_000 });
    assert.ok(left > 20_000 && left <= 30_000, `of 30 s the peer saw ${left} ms`);
  },
  async "cancellation of a unary call"(peer) {
    await cancelled(peer, "Block", Buffer.alloc(0));
  },
  async "cancellation of a stream"(peer) {
    await cancelled(peer, "BlockStream", Buffer.from("3"));
  },
  async "200 calls at once"(peer) {
    const calls = Array.from({ length: 200 }, async (_, number) => {
      const { answer } = await peer.ok("Unary", Buffer.from(String(number)));
      assert.equal(answer.toString(), String(number));
    });
    await Promise.all(calls);
  },
  async "50 streams at once"(peer) {
    await Promise.all(Array.from({ length: 50 }, () => pingPong(peer, 20)));
  },
};

export async function check(target, authority) {
  const peer = new Peer(target, authority);
  const outcomes = [];
  for (const [name, run] of Object.entries(checks)) {
    const began = Date.now();
    const detail = await run(peer).then(() => "", (error) => String(error.message ?? error));
    outcomes.push({ name, passed: detail === "", detail, ms: Date.now() - began });
  }
  peer.client.close();
  console.log(JSON.stringify(outcomes));
  return outcomes.every(({ passed }) => passed) ? 0 : 1;
}
