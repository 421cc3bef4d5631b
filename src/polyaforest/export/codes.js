// Codes of categories: 52 bits of a hash of their text.

const MASK = (1n << 64n) - 1n, BLOCK = 128;
const START = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const ORDERS = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
  "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
  "0123456789abcdef", "ea489fd61c02b753",
].map((order) => [...order].map((digit) => parseInt(digit, 16)));
const LANES = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
  [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];

// Return the code of a category: a text, a number or a boolean.
export function codeOf(value) {
  let text = String(value);
  if (value === true || value === false) text = value ? "True" : "False";
  else if (typeof value === "number") text = Number.isInteger(value) ? BigInt(value).toString() : decimal(value);
  return Number(digest(new TextEncoder().encode(text)) >> 12n);
}

// Return how many bits of a code are new to a cube of codes.
export function newBits(low, high, code) {
  const [a, b, c] = [low, high, code].map((value) => BigInt(value));
  let n = 0;
  for (let bits = (a & ~c) | (c & ~b); bits; bits &= bits - 1n) n += 1;
  return n;
}

// Return the text of a fraction as Python writes it.
function decimal(value) {
  return Math.abs(value) < 1e-4 ? value.toExponential().replace(/e([+-])(\d)$/, "e$10$2") : String(value);
}

// Return the BLAKE2b digest (RFC 7693) of 8 bytes, as a number in big-endian order.
function digest(bytes) {
  let state = [START[0] ^ 0x01010008n, ...START.slice(1)];
  const nBlocks = Math.max(Math.ceil(bytes.length / BLOCK), 1), padded = new Uint8Array(nBlocks * BLOCK);
  padded.set(bytes);
  const view = new DataView(padded.buffer);
  for (let block = 0; block < nBlocks; block++) {
    const isLast = block === nBlocks - 1, n = isLast ? bytes.length : (block + 1) * BLOCK;
    const words = Array.from({ length: 16 }, (_, i) => view.getBigUint64(block * BLOCK + 8 * i, true));
    state = compress(state, words, BigInt(n), isLast);
  }
  const first = new DataView(new ArrayBuffer(8));
  first.setBigUint64(0, state[0], true);
  return first.getBigUint64(0);
}

function compress(state, words, n, isLast) {
  const v = [...state, ...START];
  v[12] ^= n;
  if (isLast) v[14] ^= MASK;
  const turn = (word, bits) => ((word >> bits) | (word << (64n - bits))) & MASK;
  for (const order of ORDERS) {
    LANES.forEach(([a, b, c, d], i) => {
      v[a] = (v[a] + v[b] + words[order[2 * i]]) & MASK;
      v[d] = turn(v[d] ^ v[a], 32n);
      v[c] = (v[c] + v[d]) & MASK;
      v[b] = turn(v[b] ^ v[c], 24n);
      v[a] = (v[a] + v[b] + words[order[2 * i + 1]]) & MASK;
      v[d] = turn(v[d] ^ v[a], 16n);
      v[c] = (v[c] + v[d]) & MASK;
      v[b] = turn(v[b] ^ v[c], 63n);
    });
  }
  return state.map((word, i) => word ^ v[i] ^ v[i + 8]);
}
