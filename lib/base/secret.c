/* secret.c: see secret.h. */
#include "base/secret.h"

#include <nettle/chacha-poly1305.h>
#include <nettle/hkdf.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>

#include "base/os.h"

bool secret_draw(struct secret *secret) { return os_random(secret->bytes, sizeof secret->bytes); }

void secret_wipe(struct secret *secret) { explicit_bzero(secret, sizeof *secret); }

/* HKDF-Extract with the purpose as salt, so that data of one purpose is none of another; then HKDF-Expand. */
void secret_derive(const struct secret *from, const char *purpose, const void *data, size_t bytes,
                   struct secret *out) {
  struct hmac_sha256_ctx hash;
  uint8_t extracted[SHA256_DIGEST_SIZE];
  hmac_sha256_set_key(&hash, strlen(purpose), (const uint8_t *)purpose);
  hkdf_extract(&hash, (nettle_hash_update_func *)hmac_sha256_update,
               (nettle_hash_digest_func *)hmac_sha256_digest, SHA256_DIGEST_SIZE, SECRET_BYTES, from->bytes,
               extracted);
  hmac_sha256_set_key(&hash, sizeof extracted, extracted);
  hkdf_expand(&hash, (nettle_hash_update_func *)hmac_sha256_update,
              (nettle_hash_digest_func *)hmac_sha256_digest, SHA256_DIGEST_SIZE, bytes, (const uint8_t *)data,
              SECRET_BYTES, out->bytes);
  explicit_bzero(&hash, sizeof hash);
  explicit_bzero(extracted, sizeof extracted);
}

uint64_t secret_name(const struct secret *secret) {
  struct secret derived;
  uint64_t name;
  secret_derive(secret, "tutti name", NULL, 0, &derived);
  memcpy(&name, derived.bytes, sizeof name);
  return name != 0 ? name : 1;
}

static void seal_begin(struct seal *seal, struct chacha_poly1305_ctx *cipher, const void *head,
                       size_t head_bytes) {
  uint8_t nonce[CHACHA_POLY1305_NONCE_SIZE] = {0};
  memcpy(nonce, &seal->count, sizeof seal->count);
  seal->count++;
  chacha_poly1305_set_key(cipher, seal->key.bytes);
  chacha_poly1305_set_nonce(cipher, nonce);
  chacha_poly1305_update(cipher, head_bytes, (const uint8_t *)head);
}

void seal_close(struct seal *seal, const void *head, size_t head_bytes, uint8_t *body, size_t bytes,
                uint8_t tag[SEAL_BYTES]) {
  struct chacha_poly1305_ctx cipher;
  seal_begin(seal, &cipher, head, head_bytes);
  chacha_poly1305_encrypt(&cipher, bytes, body, body);
  chacha_poly1305_digest(&cipher, SEAL_BYTES, tag);
  explicit_bzero(&cipher, sizeof cipher);
}

bool seal_open(struct seal *seal, const void *head, size_t head_bytes, uint8_t *body, size_t bytes,
               const uint8_t tag[SEAL_BYTES]) {
  struct chacha_poly1305_ctx cipher;
  uint8_t expected[SEAL_BYTES];
  seal_begin(seal, &cipher, head, head_bytes);
  chacha_poly1305_decrypt(&cipher, bytes, body, body);
  chacha_poly1305_digest(&cipher, SEAL_BYTES, expected);
  explicit_bzero(&cipher, sizeof cipher);
  return memeql_sec(expected, tag, SEAL_BYTES);
}
