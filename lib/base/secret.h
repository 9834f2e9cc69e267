/* secret.h: secrets of 32 bytes, by which processes prove that they belong to one job, and what is derived
 * from them: other secrets, and names. Derivation is one-way (HKDF-SHA-256, RFC 5869, by nettle): a name or a
 * derived secret says nothing of the secret that it comes from. Secrets themselves are never sent. */
#ifndef TUTTI_BASE_SECRET_H
#define TUTTI_BASE_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SECRET_BYTES 32

struct secret {
  uint8_t bytes[SECRET_BYTES];
};

/* Random bytes of the kernel; false: it gives none. */
bool secret_draw(struct secret *secret);
/* A secret for one purpose; `data` distinguishes several with the same purpose. `out` may be `from`. */
void secret_derive(const struct secret *from, const char *purpose, const void *data, size_t bytes,
                   struct secret *out);
/* The secret's name on the wire, never 0. */
uint64_t secret_name(const struct secret *secret);
void secret_wipe(struct secret *secret);

/* One direction of a connection: encrypts frames and detects changed, repeated, reordered and foreign ones
 * (ChaCha20-Poly1305, RFC 8439, by nettle). The number of the frame is its nonce. */
struct seal {
  struct secret key;
  uint64_t count; /* frames so far */
};
#define SEAL_BYTES 16

/* Encrypts the body in place, and writes the tag over `head` (not encrypted) and body. */
void seal_close(struct seal *seal, const void *head, size_t head_bytes, uint8_t *body, size_t bytes,
                uint8_t tag[SEAL_BYTES]);
/* Decrypts in place; false if head, body or tag are not what was closed. */
bool seal_open(struct seal *seal, const void *head, size_t head_bytes, uint8_t *body, size_t bytes,
               const uint8_t tag[SEAL_BYTES]);

/* Both directions at one end. */
struct session {
  struct seal out, in;
};

#endif
