// Compare the JavaScript member's functions with docs/secure_vectors.json:
//   node node_vectors.mjs FILE
import assert from 'node:assert/strict';
import { createPrivateKey } from 'node:crypto';
import { readFileSync } from 'node:fs';
import {
  encoded, exchangeDigest, fractionBits, masked, pairSecret, signedPart,
} from '../../examples/remote/node/masking.mjs';

const found = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const hex = (text) => Buffer.from(text, 'hex');
const bound = Number(found.value_bound);
const bits = [Number(found.value_bits), Number(found.square_bits)];
for (const each of [{ ...found, members: found.members.length }, ...found.other_bits]) {
  const expected = [Number(each.value_bits), Number(each.square_bits)];
  assert.deepEqual(fractionBits(Number(each.members), Number(each.value_bound)), expected);
}

const cohort = found.members.map(({ name, public_key }) => [name, hex(public_key)]);
const states = { dtype: found.states.dtype, shape: found.states.shape, data: hex(found.states.data) };
const identity = [found.exchange.epoch, found.exchange.number].map(BigInt);
const info = exchangeDigest(identity, states, Number(found.actions), bound, cohort.toReversed?.() ?? cohort);
assert.equal(info.toString('hex'), found.mask_info);

const sums = [];
for (const { name, private_key, public_key, signed_part, values, words, check_word, ...rest } of found.members) {
  assert.equal(signedPart(name, hex(public_key)).toString('hex'), signed_part);
  const [d, x] = [private_key, public_key].map((key) => hex(key).toString('base64url'));
  const key = createPrivateKey({ key: { kty: 'OKP', crv: 'X25519', d, x }, format: 'jwk' });
  const secrets = cohort.filter(([other]) => other !== name).map((other) => {
    const secret = pairSecret(found.federation, key, [name, hex(public_key)], other);
    const pair = found.pairs.find(({ first, second }) => (
      [first, second].includes(name) && [first, second].includes(other[0])
    ));
    assert.equal(secret.toString('hex'), pair.secret);
    const mask = masked(pair.mask.map(() => 0n), pair.first, [[pair.second, secret]], info);
    assert.deepEqual(mask.map(String), pair.mask);
    return [other[0], secret];
  });
  const numbers = new Float32Array(Uint8Array.from(hex(values)).buffer);
  const own = encoded(numbers, bits);
  assert.deepEqual(own.map(String), [...words, check_word]);
  const answer = masked(own, name, secrets, info);
  assert.deepEqual(answer.map(String), rest.masked);
  answer.forEach((word, i) => { sums[i] = BigInt.asUintN(64, (sums[i] ?? 0n) + word); });
}
assert.deepEqual(sums.slice(0, -1).map(String), found.sums);
