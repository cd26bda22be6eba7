// Methods of the peer: name -> [client streams, server streams]. Messages are plain bytes.
export const methods = {
  Unary: [false, false],
  Fail: [false, false],
  Block: [false, false],
  Counts: [false, false],
  ClientStream: [true, false],
  ServerStream: [false, true],
  BlockStream: [false, true],
  Bidi: [true, true],
  BidiEarly: [true, true],
};

const same = (bytes) => bytes;

export function raw(name, requestStream, responseStream) {
  return {
    path: `/test.Peer/${name}`,
    requestStream,
    responseStream,
    requestSerialize: same,
    requestDeserialize: same,
    responseSerialize: same,
    responseDeserialize: same,
  };
}
