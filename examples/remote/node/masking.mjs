// Secure aggregation as in docs/protocol.md. Words, numbers modulo 2^64, are BigInts.
import crypto from 'node:crypto';

const [LEAST_MEMBERS, LARGEST_ERROR, SERVER_AUTH] = [3, 2 ** -16, '1.3.6.1.5.5.7.3.1'];
const modulo = (number) => BigInt.asUintN(64, number);
// A double of the size of 3 * 2^51 has no bits for fractions: adding it rounds, halves to even.
const rounded = (n) => (Math.abs(n) < 2 ** 51 ? n + 3 * 2 ** 51 - 3 * 2 ** 51 : n);
const sha256 = (data) => crypto.createHash('sha256').update(data).digest();
const byName = ([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b));
const wordBytes = (words) => Buffer.from(BigUint64Array.from(words, BigInt).buffer);
const length = (part) => Buffer.from(Uint32Array.of(Buffer.byteLength(part)).buffer);
const withLength = (part) => [length(part), Buffer.from(part)];
const joined = (...parts) => Buffer.concat(parts.flatMap(withLength));

/** Return the most fraction bits of q and of q² with which no sum overflows. */
export function fractionBits(members, bound) {
  let [factor, exponent] = [bound, 0]; // bound = factor 2^exponent, exactly
  for (; !Number.isInteger(factor); factor *= 2) exponent -= 1;
  return [[63n, 1n], [64n, 2n]].map(([room, power]) => {
    const total = BigInt(members) * BigInt(factor) ** power;
    const most = (1n << room) - BigInt(members);
    let shift = room;
    while (shift < 0n ? total > most << -shift : total << shift > most) shift -= 1n;
    return Number(shift) - Number(power) * exponent;
  });
}

/** Return the words of q, those of q², and the check word. */
export function encoded(values, [valueBits, squareBits]) {
  const scaled = [...values].map((q) => q * 2 ** valueBits);
  scaled.push(...[...values].map((q) => q * q * 2 ** squareBits));
  const words = scaled.map((number) => modulo(BigInt(rounded(number))));
  const check = words.reduce((sum, each, i) => sum + BigInt(2 * i + 1) * each, 0n);
  return [...words, modulo(0x9e3779b97f4a7c15n * check)];
}

/** Return the secret of two members, each given as [name, public key]. */
export function pairSecret(federation, privateKey, own, other) {
  const jwk = { kty: 'OKP', crv: 'X25519', x: other[1].toString('base64url') };
  const publicKey = crypto.createPublicKey({ key: jwk, format: 'jwk' });
  const shared = crypto.diffieHellman({ privateKey, publicKey });
  const info = joined('fedhql pair', federation, ...[own, other].sort(byName).flat());
  return Buffer.from(crypto.hkdfSync('sha256', shared, '', info, 32));
}

/** Return a digest of all that a cohort, given as [name, public key]s, must agree on. */
export function exchangeDigest(identity, { dtype, shape, data }, actions, bound, cohort) {
  const numbers = [Buffer.from(Float64Array.of(bound).buffer), wordBytes([actions, ...shape])];
  const question = sha256(joined('fedhql question', ...numbers, dtype, data));
  const [epoch, number] = identity.map((part) => wordBytes([part]));
  return sha256(joined('fedhql mask', epoch, number, question, ...[...cohort].sort(byName).flat()));
}

/** Add the masks shared with later names, subtract the others. `secrets` has [name, secret]s. */
export function masked(words, name, secrets, info) {
  return secrets.reduce((sum, [other, secret]) => {
    const key = crypto.createHmac('sha256', secret).update(info).update('\x01').digest(); // HKDF
    const cipher = crypto.createCipheriv('chacha20', key, Buffer.alloc(16));
    const mask = cipher.update(Buffer.alloc(8 * sum.length));
    const sign = byName([name], [other]) < 0 ? 1n : -1n;
    return sum.map((each, i) => modulo(each + sign * mask.readBigUInt64LE(8 * i)));
  }, words);
}

export const signedPart = (name, publicKey) =>
  Buffer.concat([Buffer.from(`fedhql masking key\0${name}\0`), publicKey]);

/** Return whether the member that a key names has signed it. */
function isSigned({ name, public_key, certificate, signature }, authority, now = new Date()) {
  const [shown, trusted] = [certificate, authority].map((pem) => new crypto.X509Certificate(pem));
  return shown.checkIssued(trusted) && shown.verify(trusted.publicKey)
    && new Date(shown.validFrom) <= now && now <= new Date(shown.validTo)
    && shown.toLegacyObject().subject.CN === name && !shown.keyUsage?.includes(SERVER_AUTH)
    && crypto.verify('sha256', signedPart(name, public_key), shown.publicKey, signature);
}

/** Return the key and the masked answers of one connection. None is stored, or used twice. */
export function createMasking(name, authority, certificate, signingKey) {
  const { privateKey, publicKey } = crypto.generateKeyPairSync('x25519');
  const public_key = Buffer.from(publicKey.export({ format: 'jwk' }).x, 'base64url');
  const signature = signingKey && crypto.sign('sha256', signedPart(name, public_key), signingKey);
  const [own, keys] = [[name, public_key], new Map()];
  let last = [0n, 0n]; // the newest identity that was used

  /** Return the tensor that answers a query; empty if the values cannot be summed. */
  function answer({ id, query }, values, { federation, task, secure_value_bound: bound }) {
    const unsigned = query.keys.find((key) => authority && !isSigned(key, authority));
    if (unsigned) throw new Error(`the masking key of ${unsigned.name} is not signed by it`);
    for (const key of query.keys) keys.set(key.name, key.public_key);
    const cohort = [...new Set(query.cohort)].map((member) => [member, keys.get(member)]);
    const others = cohort.filter(([member]) => member !== name);
    const identity = [id.epoch, id.number].map(BigInt);
    const bits = fractionBits(cohort.length, bound);
    const isSafe = cohort.length >= LEAST_MEMBERS && cohort.every(([, key]) => key)
      && others.length < cohort.length && keys.get(name).equals(public_key)
      && (identity[0] > last[0] || (identity[0] === last[0] && identity[1] > last[1]))
      && cohort.length * 2 ** -(Math.min(...bits) + 1) <= LARGEST_ERROR;
    if (!isSafe) throw new Error(`exchange ${identity} with ${query.cohort} would not be safe`);
    last = identity;
    if (!values.every((q) => Math.abs(q) <= bound)) return {};
    const secretWith = (other) => [other[0], pairSecret(federation, privateKey, own, other)];
    const info = exchangeDigest(identity, query.states, task.actions, bound, cohort);
    const words = masked(encoded(values, bits), name, others.map(secretWith), info);
    return { dtype: 'uint64', shape: [words.length], data: wordBytes(words) };
  }
  return { key: { name, public_key, certificate, signature }, answer };
}
