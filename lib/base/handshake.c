/* handshake.c: the handshake at both ends of a connection.
 *
 *   client                                   server
 *   hello: kind, key, random number     ->
 *                                       <-   challenge: random number
 *   proof                               ->
 *                                       <-   answer: reply, sentence, proof
 *
 * A proof is a keyed hash (HMAC-SHA-256, by nettle) of the prover's role, both random numbers, kind, key and
 * the rest of the message, so it is valid for no other connection, purpose or direction. The client proves
 * first: a client without the secret gets nothing that depends on it. From the secret and both random numbers
 * both ends derive the keys that seal what follows on control connections (secret.h); data connections carry
 * their data as it is.
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
#include "base/text.h"

/* Increment with any change of the protocol, here or after the handshake. */
#define HANDSHAKE_VERSION 2
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
  uint8_t kind;    /* hello */
  uint8_t secret;  /* hello: 1: the client knows a secret */
  uint8_t welcome; /* answer: 1: accepted */
  uint8_t refusal; /* answer: enum handshake_refusal */
  uint8_t padding; /* 0 */
  uint64_t key;    /* hello */
  uint64_t spare;  /* 0 */
  uint8_t nonce[NONCE_BYTES];
};
static_assert(sizeof(struct handshake_head) == 64, "as long as the buffers of struct handshake");
static_assert(sizeof(struct handshake_head) == sizeof(((struct handshake *)0)->own), "own is a head");

/* Follows an answer's head. */
struct handshake_reply {
  char sentence[SENTENCE_BYTES]; /* reason of a refusal; zero-terminated */
  uint8_t proof[PROOF_BYTES];    /* zeros in refusals before the client's proof */
};

/* ---- the secret ---- */

/* TUTTI_SECRET. */
struct job_secret {
  bool set;
  uint8_t key[SHA256_DIGEST_SIZE];
};
static_assert(SHA256_DIGEST_SIZE == SECRET_BYTES, "a proof's key is a secret");

static os_mutex secret_lock = OS_MUTEX_INITIALIZER;
static bool secret_known; /* secret_kept belongs to the setting whose hash is secret_of */
static uint8_t secret_of[SHA256_DIGEST_SIZE];
static struct job_secret secret_kept;

static void text_hash(const char *text, size_t bytes, uint8_t digest[SHA256_DIGEST_SIZE]) {
  struct sha256_ctx hash;
  sha256_init(&hash);
  sha256_update(&hash, bytes, (const uint8_t *)text);
  sha256_digest(&hash, SHA256_DIGEST_SIZE, digest);
  explicit_bzero(&hash, sizeof hash);
}

/* Reads the file that TUTTI_SECRET names, without trailing newlines. */
static ncclResult_t secret_from_file(const char *path, struct job_secret *secret) {
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

static ncclResult_t secret_read(const char *setting, struct job_secret *secret) {
  memset(secret, 0, sizeof *secret);
  if (setting[0] == '\0') return ncclSuccess;
  if (setting[0] == '@') return secret_from_file(setting + 1, secret);
  secret->set = true;
  text_hash(setting, strlen(setting), secret->key);
  return ncclSuccess;
}

/* Reads the secret once for each value of the setting; failures are not cached. */
static ncclResult_t secret_get(struct job_secret *secret) {
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
  struct job_secret secret;
  const ncclResult_t result = secret_get(&secret);
  explicit_bzero(&secret, sizeof secret);
  return result;
}

ncclResult_t handshake_mix(const struct secret *secret, const char *purpose, struct secret *mixed) {
  struct job_secret job;
  TRY(secret_get(&job));
  secret_derive(secret, purpose, job.key, job.set ? sizeof job.key : 0, mixed);
  explicit_bzero(&job, sizeof job);
  return ncclSuccess;
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
  hmac_sha256_set_key(&hash, sizeof secret->bytes, secret->bytes);
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

/* The keys of both directions, from everything but the answer's sentence. */
static void session_make(const struct secret *secret, struct proved *proved, bool client,
                         struct session *session) {
  struct seal *to_server = client ? &session->out : &session->in;
  struct seal *to_client = client ? &session->in : &session->out;
  memset(proved->sentence, 0, sizeof proved->sentence);
  memset(proved->who, 0, sizeof proved->who);
  proved->welcome = 0;
  memset(session, 0, sizeof *session);
  secret_derive(secret, "tutti to server", proved, sizeof *proved, &to_server->key);
  secret_derive(secret, "tutti to client", proved, sizeof *proved, &to_client->key);
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

void handshake_begin(struct handshake *handshake, int fd, handshake_find *find, void *argument) {
  memset(handshake, 0, sizeof *handshake);
  handshake->fd = fd;
  handshake->find = find;
  handshake->argument = argument;
  handshake->phase = PHASE_HELLO;
  handshake->begin_ns = os_time_ns();
}

static enum handshake_state drop(struct handshake *handshake, enum reason reason, const char *why) {
  turned_away(handshake->fd, reason, why);
  secret_wipe(&handshake->secret);
  handshake->phase = PHASE_GONE;
  return HANDSHAKE_GONE;
}

static void server_proved(const struct handshake *handshake, const char *who, struct proved *proved) {
  proved_fill(proved, who, (uint8_t)handshake->kind, handshake->key, handshake->other + NONCE_BYTES,
              handshake->own + NONCE_BYTES);
}

/* Sends one message completely or not at all: the socket's buffer holds at most a challenge, so a message
 * that does not fit now never will. A refusal with a number comes before the client's proof, and has none. */
static bool answer_send(const struct handshake *handshake, enum handshake_refusal refusal,
                        const char *sentence) {
  struct {
    struct handshake_head head;
    struct handshake_reply reply;
  } answer;
  static_assert(sizeof answer == sizeof(struct handshake_head) + sizeof(struct handshake_reply),
                "no padding");
  memset(&answer, 0, sizeof answer);
  head_fill(&answer.head, MESSAGE_ANSWER);
  answer.head.welcome = refusal == REFUSAL_NONE;
  answer.head.refusal = (uint8_t)refusal;
  snprintf(answer.reply.sentence, SENTENCE_BYTES, "%s", sentence);
  if (refusal == REFUSAL_NONE || refusal == REFUSAL_SAID) {
    struct proved proved;
    server_proved(handshake, "accept", &proved);
    proved.welcome = answer.head.welcome;
    memcpy(proved.sentence, answer.reply.sentence, SENTENCE_BYTES);
    prove(&handshake->secret, &proved, answer.reply.proof);
  }
  return sock_send_some(handshake->fd, &answer, sizeof answer) == (ptrdiff_t)sizeof answer;
}

/* Drops a client that speaks this protocol, and tells it why. If both ends are in one process, the client's
 * error becomes the last error. */
static enum handshake_state refuse(struct handshake *handshake, enum reason reason,
                                   enum handshake_refusal refusal, const char *why) {
  drop(handshake, reason, why);
  answer_send(handshake, refusal, "");
  return HANDSHAKE_GONE;
}

static bool challenge_fill(struct handshake *handshake) {
  struct handshake_head head;
  head_fill(&head, MESSAGE_CHALLENGE);
  if (!os_random(head.nonce, sizeof head.nonce)) return false;
  memcpy(handshake->own, &head, sizeof head);
  handshake->phase = PHASE_CHALLENGE;
  handshake->moved = 0;
  return true;
}

/* The hello is complete: enters the next phase, or drops the client. */
static enum handshake_state hello_check(struct handshake *handshake) {
  const struct handshake_head hello = head_of(handshake->other);
  struct secret secret;
  if (hello.version != HANDSHAKE_VERSION)
    return refuse(handshake, REASON_VERSION, REFUSAL_VERSION, "it speaks another version of the protocol");
  if (hello.type != MESSAGE_HELLO || hello.kind < HANDSHAKE_CHECK_IN || hello.kind > HANDSHAKE_DATA)
    return drop(handshake, REASON_STRANGER, "no hello");
  if (handshake_secret() != (hello.secret == 1))
    return refuse(
        handshake, REASON_SECRET, hello.secret ? REFUSAL_SET_THERE : REFUSAL_SET_HERE,
        hello.secret ? "TUTTI_SECRET is set there and not here" : "TUTTI_SECRET is set here and not there");
  handshake->kind = (enum handshake_kind)hello.kind;
  handshake->key = hello.key;
  if (!handshake->find(handshake->argument, handshake->kind, hello.key, &secret))
    return refuse(handshake, REASON_REFUSED, REFUSAL_KEY, "it wants something that is not here");
  const ncclResult_t mixed = handshake_mix(&secret, "tutti proof", &handshake->secret);
  secret_wipe(&secret);
  if (mixed != ncclSuccess || !challenge_fill(handshake))
    return refuse(handshake, REASON_REFUSED, REFUSAL_UNREADABLE, "TUTTI_SECRET cannot be read here");
  return HANDSHAKE_MORE;
}

/* The proof overwrites the hello's head; the hello's random number is still behind it. */
static enum handshake_state proof_check(struct handshake *handshake) {
  struct proved proved;
  uint8_t proof[PROOF_BYTES];
  server_proved(handshake, "dialer", &proved);
  prove(&handshake->secret, &proved, proof);
  if (!memeql_sec(proof, handshake->other, PROOF_BYTES))
    return refuse(handshake, REASON_SECRET, REFUSAL_PROOF,
                  "its secret is another one (of the unique id, or TUTTI_SECRET)");
  session_make(&handshake->secret, &proved, false, &handshake->session);
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

static enum handshake_state phase_end(struct handshake *handshake) {
  if (handshake->phase == PHASE_HELLO) return hello_check(handshake);
  if (handshake->phase == PHASE_PROOF) return proof_check(handshake);
  handshake->phase = PHASE_PROOF;
  handshake->moved = 0;
  return HANDSHAKE_MORE;
}

enum handshake_state handshake_step(struct handshake *handshake) {
  if (handshake->phase == PHASE_GONE) return HANDSHAKE_GONE;
  while (handshake->phase < PHASE_DONE) {
    const int whole = message_move(handshake);
    if (whole < 0) return drop(handshake, REASON_STRANGER, "it hung up in the middle of the handshake");
    if (!magic_begins(handshake)) return drop(handshake, REASON_STRANGER, "it speaks another language");
    if (whole > 0) {
      if (phase_end(handshake) == HANDSHAKE_GONE) return HANDSHAKE_GONE;
    } else {
      if (os_time_ns() - handshake->begin_ns < HANDSHAKE_SECONDS * NS_PER_SECOND) return HANDSHAKE_MORE;
      return drop(handshake, REASON_LATE, "it did not finish the handshake in time");
    }
  }
  return HANDSHAKE_DONE;
}

bool handshake_answer(struct handshake *handshake, const char *refusal) {
  if (handshake->phase != PHASE_DONE) return false;
  if (refusal) turned_away(handshake->fd, REASON_REFUSED, refusal);
  const bool sent = answer_send(handshake, refusal ? REFUSAL_SAID : REFUSAL_NONE, refusal ? refusal : "");
  secret_wipe(&handshake->secret);
  return sent;
}

/* ---- the client's side ---- */

/* The client's own sentence for a refusal. An address follows "checking in with rank 0 at" before it. */
static const char *refusal_text(enum handshake_kind kind, enum handshake_refusal refusal) {
  static const char *const keys[] = {
      [HANDSHAKE_CHECK_IN] =
          "no communicator is being made there under this unique id: it has made one, or "
          "failed to, before, or was never made; get a new one with ncclGetUniqueId, or, for ncclCommGrow, "
          "with ncclCommGetUniqueId",
      [HANDSHAKE_LINK] = "no communicator is being made there with this process: it was made, or has failed",
      [HANDSHAKE_CALL] = "nobody answers there: the communicator has been destroyed, or is not ready",
      [HANDSHAKE_DATA] = "no such listener there: its communicator has ended, or has another key",
  };
  static const char *const texts[REFUSAL_COUNT] = {
      [REFUSAL_NONE] = "no reason given",
      [REFUSAL_VERSION] = "it speaks another version of the protocol: use one library for all ranks",
      [REFUSAL_PROOF] =
          "the secret there is another one: pass all 128 bytes of the unique id, and set the "
          "same TUTTI_SECRET for all processes of the job",
      [REFUSAL_SET_HERE] = "TUTTI_SECRET is set at the server and not at the client",
      [REFUSAL_SET_THERE] = "TUTTI_SECRET is set at the client and not at the server",
      [REFUSAL_UNREADABLE] = "the process there cannot read its TUTTI_SECRET",
      [REFUSAL_SAID] = "no reason given",
  };
  if (refusal == REFUSAL_KEY) return keys[kind];
  return refusal < REFUSAL_COUNT ? texts[refusal] : texts[REFUSAL_NONE];
}

enum client_phase { CLIENT_HELLO, CLIENT_HEAD, CLIENT_PROOF, CLIENT_REPLY, CLIENT_DONE, CLIENT_GONE };
static_assert(sizeof(struct handshake_reply) == sizeof(((struct handshake_client *)0)->reply),
              "a reply fits");

/* If TUTTI_SECRET cannot be read, or the kernel has no random bytes, the first step fails. */
void handshake_client_begin(struct handshake_client *client, int fd, enum handshake_kind kind, uint64_t key,
                            const struct secret *secret) {
  struct handshake_head hello;
  memset(client, 0, sizeof *client);
  client->fd = fd;
  head_fill(&hello, MESSAGE_HELLO);
  hello.kind = (uint8_t)kind;
  hello.key = key;
  hello.secret = handshake_secret();
  if (handshake_mix(secret, "tutti proof", &client->secret) != ncclSuccess ||
      !os_random(hello.nonce, sizeof hello.nonce))
    client->phase = CLIENT_GONE;
  memcpy(client->hello, &hello, sizeof hello);
}

/* The message of this phase. */
struct client_message {
  uint8_t *data;
  size_t bytes;
  bool sends;
};

static struct client_message client_message(struct handshake_client *client) {
  switch ((enum client_phase)client->phase) {
    case CLIENT_HELLO: return (struct client_message){client->hello, sizeof client->hello, true};
    case CLIENT_HEAD: return (struct client_message){client->head, sizeof client->head, false};
    case CLIENT_PROOF: return (struct client_message){client->proof, sizeof client->proof, true};
    default: return (struct client_message){client->reply, sizeof client->reply, false};
  }
}

/* Transfers this phase's message: 1: complete; 0: later; -1: the connection is gone. */
static int client_move(struct handshake_client *client) {
  const struct client_message message = client_message(client);
  uint8_t *data = message.data + client->moved;
  const size_t left = message.bytes - client->moved;
  const ptrdiff_t moved =
      message.sends ? sock_send_some(client->fd, data, left) : sock_receive_some(client->fd, data, left);
  if (moved < 0) return -1;
  client->moved += (uint32_t)moved;
  return client->moved == message.bytes;
}

static void client_proved(const struct handshake_client *client, const char *who, struct proved *proved) {
  const struct handshake_head hello = head_of(client->hello);
  proved_fill(proved, who, hello.kind, hello.key, hello.nonce, client->challenge + NONCE_BYTES);
}

static const char *client_head_check(struct handshake_client *client) {
  const struct handshake_head head = head_of(client->head);
  if (head.magic != HANDSHAKE_MAGIC)
    return "something else than this library answers there: check the address";
  if (head.type == MESSAGE_ANSWER) {
    client->phase = CLIENT_REPLY;
    return NULL;
  }
  if (head.version != HANDSHAKE_VERSION)
    return "it speaks another version of the protocol: use one library for all ranks";
  if (head.type != MESSAGE_CHALLENGE || client->challenged)
    return "it does not keep to the handshake: check the address";
  struct proved proved;
  memcpy(client->challenge, client->head, sizeof client->challenge);
  client_proved(client, "dialer", &proved);
  prove(&client->secret, &proved, client->proof);
  client->challenged = true;
  client->phase = CLIENT_PROOF;
  return NULL;
}

static bool answer_is_proved(const struct handshake_client *client, const struct handshake_reply *reply) {
  const struct handshake_head head = head_of(client->head);
  struct proved proved;
  uint8_t proof[PROOF_BYTES];
  if (!client->challenged) return false;
  client_proved(client, "accept", &proved);
  proved.welcome = head.welcome;
  memcpy(proved.sentence, reply->sentence, SENTENCE_BYTES);
  prove(&client->secret, &proved, proof);
  return memeql_sec(proof, reply->proof, PROOF_BYTES);
}

/* A server that has proved nothing cannot put words into the client's log. */
static const char *client_reply_check(struct handshake_client *client) {
  const struct handshake_head hello = head_of(client->hello), head = head_of(client->head);
  struct handshake_reply reply;
  struct proved proved;
  memcpy(&reply, client->reply, sizeof reply);
  const bool is_proved = answer_is_proved(client, &reply);
  if (head.welcome != 1) {
    client->refusal = head.refusal < REFUSAL_COUNT ? head.refusal : REFUSAL_NONE;
    if (client->refusal != REFUSAL_SAID || !is_proved)
      return refusal_text((enum handshake_kind)hello.kind, (enum handshake_refusal)client->refusal);
    client->reply[SENTENCE_BYTES - 1] = '\0';
    text_clean((char *)client->reply, SENTENCE_BYTES);
    return (const char *)client->reply;
  }
  if (!is_proved)
    return "it does not know the secret: set the same TUTTI_SECRET for all processes of the job";
  client_proved(client, "dialer", &proved);
  session_make(&client->secret, &proved, true, &client->session);
  client->phase = CLIENT_DONE;
  return NULL;
}

/* The message of this phase is complete. Returns why the handshake failed, or NULL. */
static const char *client_phase_end(struct handshake_client *client) {
  const enum client_phase phase = (enum client_phase)client->phase;
  client->moved = 0;
  if (phase == CLIENT_HEAD) return client_head_check(client);
  if (phase == CLIENT_REPLY) return client_reply_check(client);
  client->phase = CLIENT_HEAD;
  return NULL;
}

enum handshake_state handshake_client_step(struct handshake_client *client, char *reason,
                                           size_t reason_bytes) {
  if (client->phase == CLIENT_GONE) snprintf(reason, reason_bytes, "TUTTI_SECRET cannot be read here");
  while (client->phase < CLIENT_DONE) {
    const int whole = client_move(client);
    if (whole == 0) return HANDSHAKE_MORE;
    const char *wrong = whole < 0 ? "" : client_phase_end(client);
    if (wrong == NULL) continue;
    client->phase = CLIENT_GONE;
    snprintf(reason, reason_bytes, "%s", wrong);
  }
  secret_wipe(&client->secret);
  return client->phase == CLIENT_DONE ? HANDSHAKE_DONE : HANDSHAKE_GONE;
}

static ncclResult_t dial(struct handshake_client *client, const struct sock_wait *wait) {
  const struct sock_address peer = sock_peer(client->fd);
  char address[SOCK_TEXT_BYTES];
  while (client->phase < CLIENT_DONE) {
    const struct client_message message = client_message(client);
    if (message.sends) TRY(sock_send(client->fd, message.data, message.bytes, wait));
    else TRY(sock_receive(client->fd, message.data, message.bytes, wait));
    const char *wrong = client_phase_end(client);
    if (wrong != NULL)
      return log_fail(ncclRemoteError, "%s %s: %s%s", wait && wait->what ? wait->what : "connection with",
                      sock_address_text(&peer, address), client->refusal ? "refused: " : "", wrong);
  }
  if (client->phase == CLIENT_DONE) return ncclSuccess;
  return log_fail(ncclSystemError, "the kernel has no random bytes for a handshake");
}

ncclResult_t handshake_dial(int fd, enum handshake_kind kind, uint64_t key, const struct secret *secret,
                            const struct sock_wait *wait, struct session *session,
                            enum handshake_refusal *refusal) {
  struct handshake_client client;
  TRY(handshake_check());
  handshake_client_begin(&client, fd, kind, key, secret);
  const ncclResult_t result = dial(&client, wait);
  if (refusal) *refusal = (enum handshake_refusal)client.refusal;
  if (session) *session = client.session;
  explicit_bzero(&client, sizeof client);
  return result;
}

const char *handshake_try(int fd, enum handshake_kind kind, uint64_t key, const struct secret *secret,
                          const struct sock_wait *wait, struct session *session,
                          enum handshake_refusal *refusal, char *why, size_t why_bytes) {
  struct handshake_client client;
  enum handshake_state state;
  why[0] = '\0';
  handshake_client_begin(&client, fd, kind, key, secret);
  while ((state = handshake_client_step(&client, why, why_bytes)) == HANDSHAKE_MORE &&
         sock_poll(fd, false, wait)) {}
  *session = client.session;
  *refusal = (enum handshake_refusal)client.refusal;
  explicit_bzero(&client, sizeof client);
  return state == HANDSHAKE_DONE ? NULL : why;
}

ncclResult_t handshake_connect(const struct sock_address *to, enum handshake_kind kind, uint64_t key,
                               const struct secret *secret, const struct sock_wait *wait, int *fd,
                               struct session *session, enum handshake_refusal *refusal) {
  char address[SOCK_TEXT_BYTES], why[256];
  TRY(handshake_check());
  sock_address_text(to, address);
  *refusal = REFUSAL_NONE;
  for (uint64_t pause_ms = 1;; pause_ms = pause_ms < 64 ? 2 * pause_ms : pause_ms) {
    TRY(sock_connect(to, wait, fd));
    const char *wrong = handshake_try(*fd, kind, key, secret, wait, session, refusal, why, sizeof why);
    if (wrong == NULL) return ncclSuccess;
    sock_close(*fd);
    *fd = -1;
    if (wrong[0] != '\0')
      return log_fail(ncclRemoteError, "%s %s: %s%s", wait->what, address, *refusal ? "refused: " : "",
                      wrong);
    if (!sock_pause(pause_ms, wait)) return sock_wait_over(wait, address, " in the handshake");
  }
}
