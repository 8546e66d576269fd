"""The first message of a handshake (docs/WIRE.md, *A secured wire*), made by who has the key."""

import hashlib
import hmac
import secrets
import socket
import struct

NAME = b"Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s"
PROLOGUE = b"causeway wire 1"
KEY_NAME = b"causeway wire key 1\0"
TENANT = b"default"
VERSION, TRP, CIPHERS = 1, 1, 3
HASH_BLOCK, DOUBLE_ROUNDS, WORD = 64, 10, 0xFFFFFFFF
PRIME = (1 << 130) - 5


def rotated(word, by):
    """A word of 32 bits, rotated to the left."""
    return (word << by | word >> (32 - by)) & WORD


def quarter(s, a, b, c, d):
    """RFC 8439 section 2.1."""
    for to, more, other, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[to] = s[to] + s[more] & WORD
        s[other] = rotated(s[other] ^ s[to], by)


def key_stream(key, counter):
    """A block of ChaCha20 whose nonce is zero (RFC 8439 section 2.3)."""
    first = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter,
             0, 0, 0]
    s = list(first)
    for _ in range(DOUBLE_ROUNDS):
        for at in range(4):
            quarter(s, at, at + 4, at + 8, at + 12)
        for at in range(4):
            quarter(s, at, 4 + (at + 1) % 4, 8 + (at + 2) % 4, 12 + (at + 3) % 4)
    return struct.pack("<16I", *((a + b) & WORD for a, b in zip(s, first)))


def padded(data):
    """Filled up to 16 bytes."""
    return data + bytes(-len(data) % 16)


def sealed(key, text, more):
    """ChaCha20-Poly1305 by a key that seals nothing else (RFC 8439 section 2.8)."""
    once = key_stream(key, 0)
    stream = b"".join(key_stream(key, 1 + at) for at in range((len(text) + 63) // 64))
    out = bytes(a ^ b for a, b in zip(text, stream))
    r = int.from_bytes(once[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    data = padded(more) + padded(out) + struct.pack("<QQ", len(more), len(out))
    total = 0
    for at in range(0, len(data), 16):
        total = (total + int.from_bytes(data[at:at + 16] + b"\1", "little")) * r % PRIME
    tag = total + int.from_bytes(once[16:32], "little") & ((1 << 128) - 1)
    return out + tag.to_bytes(16, "little")


def derived(chaining, material, count):
    """HKDF as Noise has it, section 4.3."""
    def mac(key, text):
        return hmac.new(key, text, hashlib.blake2s).digest()
    secret, out = mac(chaining, material), [b""]
    for number in range(1, count + 1):
        out.append(mac(secret, out[-1] + bytes([number])))
    return out[1:]


def hashed(*parts):
    """BLAKE2s of what was hashed before and more."""
    return hashlib.blake2s(b"".join(parts)).digest()


def gid(address):
    """The GID of an IPv4 address."""
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address)


def party(address, qpn, cookie):
    """`Party` of crates/fabric/src/services/secure.rs."""
    return (struct.pack("<H", len(TENANT)) + TENANT + struct.pack("<I", 0) + gid(address)
            + struct.pack("<IQ", qpn, cookie))


def first_message(key, own, cookie, peer):
    """What begins a handshake; `own` and `peer` are address and number of a queue pair."""
    offer = (struct.pack("<HBIB", VERSION, TRP, 0, CIPHERS) + party(*own, cookie)
             + party(*peer, cookie))
    psk = hmac.new(bytes.fromhex(key), KEY_NAME, hashlib.sha256).digest()
    chaining = hashed(NAME)
    so_far = hashed(chaining, PROLOGUE)
    chaining, more, _ = derived(chaining, psk, 3)
    so_far = hashed(so_far, more)
    # Any bytes are somebody's public key.
    ephemeral = secrets.token_bytes(32)
    so_far = hashed(so_far, ephemeral)
    chaining, secret = derived(chaining, ephemeral, 2)
    return ephemeral + sealed(secret, offer, so_far)
