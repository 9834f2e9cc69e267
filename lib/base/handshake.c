/* handshake.c: the handshake at both ends of a connection.
 *
 *   client                                   server
 *   hello: kind, key, random number     ->
 *                                       <-   challenge: random number        (only with TUTTI_SECRET)
 *   proof                               ->                                   (only with TUTTI_SECRET)
 *                                       <-   answer: reply, sentence, proof
 *
 * A proof is a keyed hash (HMAC-SHA-256, by nettle) of the prover's role, both random numbers, kind, key and
 * the rest of the message, so it is valid for no other connection, purpose or direction. The client proves
 * first: a client without the secret gets nothing that depends on it. Later data is neither encrypted nor
 * authenticated.
 *
 * Promises: the server never blocks, allocates nothing per connection and reads no byte beyond the handshake;
 * each message has one size. Does not know what keys mean. */
#include "base/handshake.h"

#include <assert.h>
#include <errno.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"

/* Increment with any change of the protocol, here or after the handshake. */
#define HANDSHAKE_VERSION 1
#define HANDSHAKE_MAGIC 0x2149747475546921ull /* in host byte order, so both hosts must have the same */
#define SECRET_BYTES_MOST 65536
#define NONCE_BYTES 32
#define PROOF_BYTES 32
#define SENTENCE_BYTES 96
#define NS_PER_SECOND 1000000000ull

enum message_type { MESSAGE_HELLO = 1, MESSAGE_CHALLENGE = 2, MESSAGE_ANSWER = 3 };
enum handshake_phase { PHASE_HELLO, PHASE_CHALLENGE, PHASE_PROOF, PHASE_DONE, PHASE_GONE };

/* The first 64 bytes of every message. */
struct handshake_head {
  uint64_t magic;
  uint16_t version;
  uint8_t type;
  uint8_t kind;     /* hello */
  uint8_t secret;   /* hello: 1: the client knows a secret */
  uint8_t welcome;  /* answer: 1: accepted */
  uint16_t padding; /* 0 */
  uint64_t key;     /* hello */
  uint64_t spare;   /* 0 */
  uint8_t nonce[NONCE_BYTES];
};
static_assert(sizeof(struct handshake_head) == 64, "as long as the buffers of struct handshake");
static_assert(sizeof(struct handshake_head) == sizeof(((struct handshake *)0)->own), "own is a head");

/* Follows an answer's head. */
struct handshake_reply {
  char sentence[SENTENCE_BYTES]; /* reason of a refusal; zero-terminated */
  uint8_t proof[PROOF_BYTES];    /* zeros without a secret, and in refusals before the client's proof */
};

/* ---- the secret ---- */

struct secret {
  bool set;
  uint8_t key[SHA256_DIGEST_SIZE];
};

static os_mutex secret_lock = OS_MUTEX_INITIALIZER;
static bool secret_known; /* secret_kept belongs to the setting whose hash is secret_of */
static uint8_t secret_of[SHA256_DIGEST_SIZE];
static struct secret secret_kept;

static void text_hash(const char *text, size_t bytes, uint8_t digest[SHA256_DIGEST_SIZE]) {
  struct sha256_ctx hash;
  sha256_init(&hash);
  sha256_update(&hash, bytes, (const uint8_t *)text);
  sha256_digest(&hash, SHA256_DIGEST_SIZE, digest);
  explicit_bzero(&hash, sizeof hash);
}

/* Reads the file that TUTTI_SECRET names, without trailing newlines. */
static ncclResult_t secret_from_file(const char *path, struct secret *secret) {
  size_t bytes = 0;
  char *text = os_file_read_most(path, SECRET_BYTES_MOST, &bytes);
  if (text == NULL)
    return log_fail(ncclInvalidUsage, "cannot read the secret from %s: %s; check TUTTI_SECRET", path,
                    strerror(errno));
  while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r')) bytes--;
  if (bytes > 0) text_hash(text, bytes, secret->key);
  explicit_bzero(text, bytes);
  os_free(text);
  secret->set = bytes > 0;
  if (bytes > 0) return ncclSuccess;
  return log_fail(ncclInvalidUsage, "the file of TUTTI_SECRET, %s, is empty; write the secret into it", path);
}

static ncclResult_t secret_read(const char *setting, struct secret *secret) {
  memset(secret, 0, sizeof *secret);
  if (setting[0] == '\0') return ncclSuccess;
  if (setting[0] == '@') return secret_from_file(setting + 1, secret);
  secret->set = true;
  text_hash(setting, strlen(setting), secret->key);
  return ncclSuccess;
}

static void nonce_draw(uint8_t nonce[NONCE_BYTES]) {
  for (size_t i = 0; i < NONCE_BYTES; i += sizeof(uint64_t)) {
    const uint64_t bits = os_entropy();
    memcpy(nonce + i, &bits, sizeof bits);
  }
}

/* Reads the secret once for each value of the setting; failures are not cached. */
static ncclResult_t secret_get(struct secret *secret) {
  const char *setting = param_text(PARAM_TUTTI_SECRET);
  uint8_t of[SHA256_DIGEST_SIZE];
  ncclResult_t result = ncclSuccess;
  text_hash(setting, strlen(setting), of);
  os_mutex_lock(&secret_lock);
  if (!secret_known || memcmp(of, secret_of, sizeof of) != 0) {
    result = secret_read(setting, &secret_kept);
    secret_known = result == ncclSuccess;
    memcpy(secret_of, of, sizeof of);
  }
  *secret = secret_kept;
  os_mutex_unlock(&secret_lock);
  return result;
}

bool handshake_secret(void) { return param_text(PARAM_TUTTI_SECRET)[0] != '\0'; }

ncclResult_t handshake_check(void) {
  struct secret secret;
  const ncclResult_t result = secret_get(&secret);
  explicit_bzero(&secret, sizeof secret);
  return result;
}

/* Everything that a proof covers. */
struct proved {
  char who[8]; /* "dialer" (the client) or "accept" (the server), so that a reflected proof is invalid */
  uint16_t version;
  uint8_t kind, welcome;
  uint32_t padding;
  uint64_t key;
  uint8_t client_nonce[NONCE_BYTES], server_nonce[NONCE_BYTES];
  char sentence[SENTENCE_BYTES];
};

static void prove(const struct secret *secret, const struct proved *proved, uint8_t proof[PROOF_BYTES]) {
  struct hmac_sha256_ctx hash;
  hmac_sha256_set_key(&hash, sizeof secret->key, secret->key);
  hmac_sha256_update(&hash, sizeof *proved, (const uint8_t *)proved);
  hmac_sha256_digest(&hash, PROOF_BYTES, proof);
  explicit_bzero(&hash, sizeof hash);
}

static void proved_fill(struct proved *proved, const char *who, uint8_t kind, uint64_t key,
                        const uint8_t *client_nonce, const uint8_t *server_nonce) {
  memset(proved, 0, sizeof *proved);
  snprintf(proved->who, sizeof proved->who, "%s", who);
  proved->version = HANDSHAKE_VERSION;
  proved->kind = kind;
  proved->key = key;
  memcpy(proved->client_nonce, client_nonce, NONCE_BYTES);
  memcpy(proved->server_nonce, server_nonce, NONCE_BYTES);
}

static void head_fill(struct handshake_head *head, enum message_type type) {
  memset(head, 0, sizeof *head);
  head->magic = HANDSHAKE_MAGIC;
  head->version = HANDSHAKE_VERSION;
  head->type = (uint8_t)type;
}

/* ---- counts ---- */

enum reason { REASON_STRANGER, REASON_SECRET, REASON_VERSION, REASON_LATE, REASON_REFUSED, REASON_COUNT };
static atomic_uint_fast64_t counts[REASON_COUNT];
static atomic_uint_fast64_t logged_ns[REASON_COUNT];

/* Counts and logs a dropped connection, at most once per minute and reason. Unauthenticated clients are not
 * an error of the program and do not change the last error; a wrong secret or version does. */
static void turned_away(int fd, enum reason reason, const char *why) {
  const uint64_t count = atomic_fetch_add(&counts[reason], 1) + 1;
  const uint64_t now = os_time_ns();
  uint64_t before = atomic_load(&logged_ns[reason]);
  if (before != 0 && now - before < 60 * NS_PER_SECOND) return;
  if (!atomic_compare_exchange_strong(&logged_ns[reason], &before, now)) return;
  const struct sock_address peer = sock_peer(fd);
  char text[SOCK_TEXT_BYTES];
  sock_address_text(&peer, text);
  if (reason == REASON_SECRET || reason == REASON_VERSION)
    log_warn("a connection from %s was turned away: %s (%llu so far)", text, why, (unsigned long long)count);
  else
    log_info(LOG_BOOTSTRAP, "a connection from %s was turned away: %s (%llu so far)", text, why,
             (unsigned long long)count);
}

struct handshake_counts handshake_counted(void) {
  struct handshake_counts counted;
  counted.strangers = atomic_load(&counts[REASON_STRANGER]);
  counted.wrong_secret = atomic_load(&counts[REASON_SECRET]);
  counted.wrong_version = atomic_load(&counts[REASON_VERSION]);
  counted.late = atomic_load(&counts[REASON_LATE]);
  counted.refused = atomic_load(&counts[REASON_REFUSED]);
  return counted;
}

/* ---- the server's side ---- */

static struct handshake_head head_of(const uint8_t bytes[64]) {
  struct handshake_head head;
  memcpy(&head, bytes, sizeof head);
  return head;
}

void handshake_begin(struct handshake *handshake, int fd) {
  memset(handshake, 0, sizeof *handshake);
  handshake->fd = fd;
  handshake->phase = PHASE_HELLO;
  handshake->begin_ns = os_time_ns();
}

static enum handshake_state drop(struct handshake *handshake, enum reason reason, const char *why) {
  turned_away(handshake->fd, reason, why);
  handshake->phase = PHASE_GONE;
  return HANDSHAKE_GONE;
}

/* Sends one message completely or not at all: the socket's buffer holds at most a challenge, so a message
 * that does not fit now never will. */
static bool answer_send(const struct handshake *handshake, bool welcome, const char *sentence,
                        const struct secret *secret) {
  struct {
    struct handshake_head head;
    struct handshake_reply reply;
  } answer;
  static_assert(sizeof answer == sizeof(struct handshake_head) + sizeof(struct handshake_reply),
                "no padding");
  memset(&answer, 0, sizeof answer);
  head_fill(&answer.head, MESSAGE_ANSWER);
  answer.head.welcome = welcome;
  snprintf(answer.reply.sentence, SENTENCE_BYTES, "%s", sentence);
  if (secret && secret->set) {
    struct proved proved;
    proved_fill(&proved, "accept", (uint8_t)handshake->kind, handshake->key, handshake->other + NONCE_BYTES,
                handshake->own + NONCE_BYTES);
    proved.welcome = welcome;
    memcpy(proved.sentence, answer.reply.sentence, SENTENCE_BYTES);
    prove(secret, &proved, answer.reply.proof);
  }
  return sock_send_some(handshake->fd, &answer, sizeof answer) == (ptrdiff_t)sizeof answer;
}

/* Drops a client that speaks this protocol, and tells it why. If both ends are in one process, the client's
 * error becomes the last error. */
static enum handshake_state refuse(struct handshake *handshake, enum reason reason, const char *why) {
  drop(handshake, reason, why);
  answer_send(handshake, false, why, NULL);
  return HANDSHAKE_GONE;
}

static void challenge_fill(struct handshake *handshake) {
  struct handshake_head head;
  head_fill(&head, MESSAGE_CHALLENGE);
  nonce_draw(head.nonce);
  memcpy(handshake->own, &head, sizeof head);
  handshake->phase = PHASE_CHALLENGE;
  handshake->moved = 0;
}

/* The hello is complete: enters the next phase, or drops the client. */
static enum handshake_state hello_check(struct handshake *handshake, const struct secret *secret) {
  const struct handshake_head hello = head_of(handshake->other);
  if (hello.version != HANDSHAKE_VERSION) {
    char why[SENTENCE_BYTES];
    snprintf(why, sizeof why, "its version of the protocol is %u, here it is %u: use one library",
             hello.version, HANDSHAKE_VERSION);
    return refuse(handshake, REASON_VERSION, why);
  }
  if (hello.type != MESSAGE_HELLO || hello.kind < HANDSHAKE_CHECK_IN || hello.kind > HANDSHAKE_SHARE)
    return drop(handshake, REASON_STRANGER, "no hello");
  if (secret->set && !hello.secret)
    return refuse(handshake, REASON_SECRET, "TUTTI_SECRET is set at the server and not at the client");
  if (!secret->set && hello.secret)
    return refuse(handshake, REASON_SECRET, "TUTTI_SECRET is set at the client and not at the server");
  handshake->kind = (enum handshake_kind)hello.kind;
  handshake->key = hello.key;
  if (secret->set) challenge_fill(handshake);
  else handshake->phase = PHASE_DONE;
  return HANDSHAKE_MORE;
}

/* The proof overwrites the hello's head; the hello's random number is still behind it. */
static enum handshake_state proof_check(struct handshake *handshake, const struct secret *secret) {
  struct proved proved;
  uint8_t proof[PROOF_BYTES];
  proved_fill(&proved, "dialer", (uint8_t)handshake->kind, handshake->key, handshake->other + NONCE_BYTES,
              handshake->own + NONCE_BYTES);
  prove(secret, &proved, proof);
  if (!memeql_sec(proof, handshake->other, PROOF_BYTES))
    return refuse(handshake, REASON_SECRET, "TUTTI_SECRET is another one at the client than at the server");
  handshake->phase = PHASE_DONE;
  return HANDSHAKE_MORE;
}

/* Transfers this phase's message: 1: complete; 0: later; -1: the connection is gone. */
static int message_move(struct handshake *handshake) {
  const bool sends = handshake->phase == PHASE_CHALLENGE;
  const uint32_t bytes = handshake->phase == PHASE_PROOF ? PROOF_BYTES : (uint32_t)sizeof handshake->other;
  while (handshake->moved < bytes) {
    uint8_t *message = (sends ? handshake->own : handshake->other) + handshake->moved;
    const size_t left = bytes - handshake->moved;
    const ptrdiff_t moved = sends ? sock_send_some(handshake->fd, message, left)
                                  : sock_receive_some(handshake->fd, message, left);
    if (moved <= 0) return (int)moved;
    handshake->moved += (uint32_t)moved;
  }
  return 1;
}

/* Drops clients at the first byte that differs from the magic number. */
static bool magic_begins(const struct handshake *handshake) {
  const uint64_t magic = HANDSHAKE_MAGIC;
  const size_t known = handshake->moved < sizeof magic ? handshake->moved : sizeof magic;
  return handshake->phase != PHASE_HELLO || memcmp(handshake->other, &magic, known) == 0;
}

static enum handshake_state phase_end(struct handshake *handshake, const struct secret *secret) {
  if (handshake->phase == PHASE_HELLO) return hello_check(handshake, secret);
  if (handshake->phase == PHASE_PROOF) return proof_check(handshake, secret);
  handshake->phase = PHASE_PROOF;
  handshake->moved = 0;
  return HANDSHAKE_MORE;
}

static enum handshake_state handshake_advance(struct handshake *handshake, const struct secret *secret) {
  while (handshake->phase < PHASE_DONE) {
    const int whole = message_move(handshake);
    if (whole < 0) return drop(handshake, REASON_STRANGER, "it hung up in the middle of the handshake");
    if (!magic_begins(handshake)) return drop(handshake, REASON_STRANGER, "it speaks another language");
    if (whole > 0) {
      if (phase_end(handshake, secret) == HANDSHAKE_GONE) return HANDSHAKE_GONE;
    } else {
      if (os_time_ns() - handshake->begin_ns < HANDSHAKE_SECONDS * NS_PER_SECOND) return HANDSHAKE_MORE;
      return drop(handshake, REASON_LATE, "it did not finish the handshake in time");
    }
  }
  return HANDSHAKE_DONE;
}

enum handshake_state handshake_step(struct handshake *handshake) {
  struct secret secret;
  if (handshake->phase == PHASE_DONE) return HANDSHAKE_DONE;
  if (handshake->phase == PHASE_GONE) return HANDSHAKE_GONE;
  if (secret_get(&secret) != ncclSuccess)
    return refuse(handshake, REASON_REFUSED, "the server cannot read its TUTTI_SECRET");
  const enum handshake_state state = handshake_advance(handshake, &secret);
  explicit_bzero(&secret, sizeof secret);
  return state;
}

bool handshake_answer(struct handshake *handshake, const char *refusal) {
  struct secret secret;
  if (handshake->phase != PHASE_DONE || secret_get(&secret) != ncclSuccess) return false;
  if (refusal) turned_away(handshake->fd, REASON_REFUSED, refusal);
  const bool sent = answer_send(handshake, refusal == NULL, refusal ? refusal : "", &secret);
  explicit_bzero(&secret, sizeof secret);
  return sent;
}

/* ---- the client's side ---- */

struct dialing {
  int fd;
  const struct sock_wait *wait;
  struct handshake_head hello, challenge;
  struct secret secret;
};

static const char *dial_what(const struct dialing *dialing) {
  return dialing->wait && dialing->wait->what ? dialing->wait->what : "connection with";
}

/* Receives the next head, which must be a server's. */
static ncclResult_t head_receive(const struct dialing *dialing, const char *address,
                                 struct handshake_head *head) {
  TRY(sock_receive(dialing->fd, head, sizeof *head, dialing->wait));
  if (head->magic != HANDSHAKE_MAGIC)
    return log_fail(ncclRemoteError,
                    "%s %s: something else than this library answers there: check the address",
                    dial_what(dialing), address);
  if (head->version != HANDSHAKE_VERSION && head->type != MESSAGE_ANSWER)
    return log_fail(ncclRemoteError,
                    "%s %s: its version of the protocol is %u, here it is %u: use one library for all ranks",
                    dial_what(dialing), address, head->version, HANDSHAKE_VERSION);
  return ncclSuccess;
}

static ncclResult_t proof_send(struct dialing *dialing) {
  struct proved proved;
  uint8_t proof[PROOF_BYTES];
  proved_fill(&proved, "dialer", dialing->hello.kind, dialing->hello.key, dialing->hello.nonce,
              dialing->challenge.nonce);
  prove(&dialing->secret, &proved, proof);
  return sock_send(dialing->fd, proof, sizeof proof, dialing->wait);
}

/* Without a challenge its random number stays zero, which a server with the secret never accepts. */
static bool answer_is_proved(const struct dialing *dialing, const struct handshake_head *head,
                             const struct handshake_reply *reply) {
  struct proved proved;
  uint8_t proof[PROOF_BYTES];
  if (!dialing->secret.set) return true;
  proved_fill(&proved, "accept", dialing->hello.kind, dialing->hello.key, dialing->hello.nonce,
              dialing->challenge.nonce);
  proved.welcome = head->welcome;
  memcpy(proved.sentence, reply->sentence, SENTENCE_BYTES);
  prove(&dialing->secret, &proved, proof);
  return memeql_sec(proof, reply->proof, PROOF_BYTES);
}

/* An unauthenticated sentence goes into the log: keep printable characters only. */
static void sentence_clean(struct handshake_reply *reply) {
  reply->sentence[SENTENCE_BYTES - 1] = '\0';
  for (char *letter = reply->sentence; *letter; letter++)
    if (*letter < ' ' || *letter > '~') *letter = '?';
}

static ncclResult_t answer_check(const struct dialing *dialing, const char *address,
                                 const struct handshake_head *head) {
  struct handshake_reply reply;
  TRY(sock_receive(dialing->fd, &reply, sizeof reply, dialing->wait));
  const bool proved = answer_is_proved(dialing, head, &reply);
  sentence_clean(&reply);
  if (head->welcome != 1)
    return log_fail(ncclRemoteError, "%s %s: refused: %s", dial_what(dialing), address,
                    reply.sentence[0] ? reply.sentence : "no reason given");
  if (!proved)
    return log_fail(ncclRemoteError,
                    "%s %s: it does not know TUTTI_SECRET: set the same one for all processes of the job",
                    dial_what(dialing), address);
  return ncclSuccess;
}

static ncclResult_t dial(struct dialing *dialing, const char *address) {
  struct handshake_head head;
  TRY(sock_send(dialing->fd, &dialing->hello, sizeof dialing->hello, dialing->wait));
  TRY(head_receive(dialing, address, &head));
  if (head.type == MESSAGE_CHALLENGE && dialing->secret.set) {
    dialing->challenge = head;
    TRY(proof_send(dialing));
    TRY(head_receive(dialing, address, &head));
  }
  if (head.type != MESSAGE_ANSWER)
    return log_fail(ncclRemoteError, "%s %s: it does not keep to the handshake: check the address",
                    dial_what(dialing), address);
  return answer_check(dialing, address, &head);
}

ncclResult_t handshake_dial(int fd, enum handshake_kind kind, uint64_t key, const struct sock_wait *wait) {
  struct dialing dialing;
  const struct sock_address peer = sock_peer(fd);
  char address[SOCK_TEXT_BYTES];
  sock_address_text(&peer, address);
  memset(&dialing, 0, sizeof dialing);
  dialing.fd = fd;
  dialing.wait = wait;
  TRY(secret_get(&dialing.secret));
  head_fill(&dialing.hello, MESSAGE_HELLO);
  dialing.hello.kind = (uint8_t)kind;
  dialing.hello.key = key;
  dialing.hello.secret = dialing.secret.set;
  nonce_draw(dialing.hello.nonce);
  const ncclResult_t result = dial(&dialing, address);
  explicit_bzero(&dialing.secret, sizeof dialing.secret);
  return result;
}

/* ---- the client's side, non-blocking ---- */

enum client_phase { CLIENT_HELLO, CLIENT_HEAD, CLIENT_PROOF, CLIENT_REPLY, CLIENT_DONE, CLIENT_GONE };
static_assert(sizeof(struct handshake_reply) == sizeof(((struct handshake_client *)0)->reply),
              "a reply fits");

/* Fills the members of `dialing` that proofs need. */
static ncclResult_t dialing_of(const struct handshake_client *client, struct dialing *dialing) {
  memset(dialing, 0, sizeof *dialing);
  dialing->fd = client->fd;
  dialing->hello = head_of(client->hello);
  dialing->challenge = head_of(client->challenge);
  return secret_get(&dialing->secret);
}

void handshake_client_begin(struct handshake_client *client, int fd, enum handshake_kind kind, uint64_t key) {
  struct handshake_head hello;
  memset(client, 0, sizeof *client);
  client->fd = fd;
  head_fill(&hello, MESSAGE_HELLO);
  hello.kind = (uint8_t)kind;
  hello.key = key;
  hello.secret = handshake_secret();
  nonce_draw(hello.nonce);
  memcpy(client->hello, &hello, sizeof hello);
}

/* Transfers this phase's message: 1: complete; 0: later; -1: the connection is gone. */
static int client_move(struct handshake_client *client) {
  uint8_t *const messages[] = {client->hello, client->head, client->proof, client->reply};
  const size_t bytes[] = {sizeof client->hello, sizeof client->head, sizeof client->proof,
                          sizeof client->reply};
  const bool sends = client->phase == CLIENT_HELLO || client->phase == CLIENT_PROOF;
  uint8_t *message = messages[client->phase] + client->moved;
  const size_t left = bytes[client->phase] - client->moved;
  const ptrdiff_t moved =
      sends ? sock_send_some(client->fd, message, left) : sock_receive_some(client->fd, message, left);
  if (moved < 0) return -1;
  client->moved += (uint32_t)moved;
  return client->moved == bytes[client->phase];
}

static const char *client_head_check(struct handshake_client *client, const struct dialing *dialing) {
  const struct handshake_head head = head_of(client->head);
  if (head.magic != HANDSHAKE_MAGIC)
    return "something else than this library answers there: check the address";
  if (head.type == MESSAGE_ANSWER) {
    client->phase = CLIENT_REPLY;
    return NULL;
  }
  if (head.version != HANDSHAKE_VERSION)
    return "another version of the protocol: use one library for all ranks";
  if (head.type != MESSAGE_CHALLENGE || !dialing->secret.set || client->challenged) {
    return "it does not keep to the handshake: check the address";
  }
  struct proved proved;
  memcpy(client->challenge, client->head, sizeof client->challenge);
  proved_fill(&proved, "dialer", dialing->hello.kind, dialing->hello.key, dialing->hello.nonce, head.nonce);
  prove(&dialing->secret, &proved, client->proof);
  client->challenged = true;
  client->phase = CLIENT_PROOF;
  return NULL;
}

static const char *client_reply_check(struct handshake_client *client, const struct dialing *dialing) {
  const struct handshake_head head = head_of(client->head);
  struct handshake_reply reply;
  memcpy(&reply, client->reply, sizeof reply);
  const bool proved =
      (client->challenged || !dialing->secret.set) && answer_is_proved(dialing, &head, &reply);
  sentence_clean(&reply);
  memcpy(client->reply, &reply, sizeof reply);
  if (head.welcome != 1) return reply.sentence[0] != '\0' ? (const char *)client->reply : "no reason given";
  if (!proved) return "it does not know TUTTI_SECRET: set the same one for all processes of the job";
  client->phase = CLIENT_DONE;
  return NULL;
}

/* The message of this phase is complete. Returns why the handshake failed, or NULL. */
static const char *client_phase_end(struct handshake_client *client) {
  struct dialing dialing;
  const char *wrong = NULL;
  const enum client_phase phase = (enum client_phase)client->phase;
  if (dialing_of(client, &dialing) != ncclSuccess) wrong = "TUTTI_SECRET cannot be read here";
  client->moved = 0;
  if (wrong == NULL && phase == CLIENT_HEAD) wrong = client_head_check(client, &dialing);
  else if (wrong == NULL && phase == CLIENT_REPLY) wrong = client_reply_check(client, &dialing);
  else client->phase = CLIENT_HEAD;
  explicit_bzero(&dialing.secret, sizeof dialing.secret);
  return wrong;
}

enum handshake_state handshake_client_step(struct handshake_client *client, char *reason,
                                           size_t reason_bytes) {
  while (client->phase < CLIENT_DONE) {
    const int whole = client_move(client);
    if (whole == 0) return HANDSHAKE_MORE;
    const char *wrong = whole < 0 ? "" : client_phase_end(client);
    if (wrong == NULL) continue;
    client->phase = CLIENT_GONE;
    snprintf(reason, reason_bytes, "%s", wrong);
  }
  return client->phase == CLIENT_DONE ? HANDSHAKE_DONE : HANDSHAKE_GONE;
}
