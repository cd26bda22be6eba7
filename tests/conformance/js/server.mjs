// The endpoint: `/test.Peer/*`, the same methods in every language's peer.
import * as grpc from "@grpc/grpc-js";
import { methods, raw } from "./methods.mjs";

const counts = { started: 0, cancelled: 0 };

function begin(call) {
  counts.started += 1;
  return call.metadata;
}

// Blocks until the call is over for the client, and counts that it was.
function awaitEnd(call) {
  call.on("cancelled", () => {
    counts.cancelled += 1;
  });
}

function unary(call, done) {
  const header = new grpc.Metadata();
  const trailer = new grpc.Metadata();
  for (const key of Object.keys(begin(call).getMap())) {
    if (!key.startsWith("echo-")) continue;
    for (const value of call.metadata.get(key)) {
      header.add(key, value);
      trailer.add(`trail-${key}`, value);
    }
  }
  call.sendMetadata(header);
  done(null, call.request, trailer);
}

function fail(call, done) {
  const metadata = new grpc.Metadata();
  const [code] = begin(call).get("fail-code");
  const [details] = call.metadata.get("fail-details-bin");
  if (details !== undefined) metadata.add("grpc-status-details-bin", details);
  done({ code: Number(code), details: call.request.toString(), metadata });
}

function block(call) {
  begin(call);
  awaitEnd(call);
}

function clientStream(call, done) {
  begin(call);
  let [count, total] = [0, 0];
  call.on("data", (message) => {
    count += 1;
    total += message.length;
  });
  call.on("end", () => done(null, Buffer.from(`${count} ${total}`)));
}

async function serverStream(call) {
  begin(call);
  const [count, size] = call.request.toString().split(" ").map(Number);
  for (let number = 0; number < count; number += 1) {
    const more = call.write(Buffer.from(String(number).padEnd(size, ".")));
    if (!more) await new Promise((resolve) => call.once("drain", resolve));
  }
  call.end();
}

function blockStream(call) {
  begin(call);
  awaitEnd(call);
  for (let number = 0; number < Number(call.request.toString()); number += 1) {
    call.write(Buffer.from(String(number)));
  }
}

function bidi(call) {
  begin(call);
  call.on("data", (message) => call.write(message));
  call.on("end", () => {
    call.write(Buffer.from("end"));
    call.end();
  });
}

function bidiEarly(call) {
  begin(call);
  call.once("data", (message) => {
    call.write(message);
    call.end();
  });
}

function count(call, done) {
  const deadline = call.getDeadline();
  const left = Number.isFinite(Number(deadline)) ? Number(deadline) - Date.now() : -1;
  done(null, Buffer.from(JSON.stringify({ ...counts, left_ms: Math.floor(left) })));
}

export function serve() {
  const server = new grpc.Server({
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
  });
  const handlers = {
    Unary: unary, Fail: fail, Block: block, ClientStream: clientStream,
    ServerStream: serverStream, BlockStream: blockStream, Bidi: bidi, BidiEarly: bidiEarly,
    Counts: count,
  };
  const definition = {};
  for (const [name, [requestStream, responseStream]] of Object.entries(methods)) {
    definition[name] = raw(name, requestStream, responseStream);
  }
  server.addService(definition, handlers);
  server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, port) => {
    if (error) throw error;
    console.log(JSON.stringify({ address: `127.0.0.1:${port}` }));
  });
  process.stdin.on("end", () => {
    server.forceShutdown();
    process.exit(0);
  });
  process.stdin.resume();
}
