/* greet.c: the greeting at both ends of a connection.
 *
 *   dialer                                   acceptor
 *   hello: kind, key, random number     ->
 *                                       <-   challenge: random number        (only with TUTTI_SECRET)
 *   proof                               ->                                   (only with TUTTI_SECRET)
 *                                       <-   answer: verdict, sentence, proof
 *
 * A proof is a keyed hash (HMAC-SHA-256, by nettle) of who proves, both random numbers, kind, key and what is
 * said, so none fits another connection, purpose or direction. The dialer proves first: whoever dials without
 * the secret gets nothing that depends on it. What is said afterwards is neither hidden nor sealed.
 *
 * Promises: the acceptor never waits, allocates nothing for a connection and reads no byte past a greeting;
 * messages have one size each. Does not know what keys mean. */
#include "base/greet.h"

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

/* Raise with any change of what is said over connections, here or behind a greeting. */
#define GREET_VERSION 1
#define GREET_MAGIC 0x2149747475546921ull /* in the host's order: a host of the other order is a stranger */
#define SECRET_BYTES_MOST 65536
#define NONCE_BYTES 32
#define PROOF_BYTES 32
#define SENTENCE_BYTES 96
#define NS_PER_SECOND 1000000000ull

enum message_type { MESSAGE_HELLO = 1, MESSAGE_CHALLENGE = 2, MESSAGE_ANSWER = 3 };
enum greet_phase { PHASE_HELLO, PHASE_CHALLENGE, PHASE_PROOF, PHASE_DONE, PHASE_GONE };

/* The first 64 bytes of whatever an end says. */
struct greet_head {
  uint64_t magic;
  uint16_t version;
  uint8_t type;
  uint8_t kind;     /* hello */
  uint8_t secret;   /* hello: 1: the dialer can prove that it knows the secret */
  uint8_t welcome;  /* answer: 1: come in */
  uint16_t padding; /* 0 */
  uint64_t key;     /* hello */
  uint64_t spare;   /* 0 */
  uint8_t nonce[NONCE_BYTES];
};
static_assert(sizeof(struct greet_head) == 64, "as long as the buffers of struct greeting");
static_assert(sizeof(struct greet_head) == sizeof(((struct greeting *)0)->own), "own is a head");

/* What follows an answer's head. */
struct greet_verdict {
  char sentence[SENTENCE_BYTES]; /* why not; zero-terminated */
  uint8_t proof[PROOF_BYTES];    /* zeros without a secret, and in refusals before the dialer's proof */
};

/* ---- the secret ---- */

struct secret {
  bool set;
  uint8_t key[SHA256_DIGEST_SIZE];
};

static os_mutex secret_lock = OS_MUTEX_INITIALIZER;
static bool secret_known; /* secret_kept is what the setting whose hash is secret_of says */
static uint8_t secret_of[SHA256_DIGEST_SIZE];
static struct secret secret_kept;

static void text_hash(const char *text, size_t bytes, uint8_t digest[SHA256_DIGEST_SIZE]) {
  struct sha256_ctx hash;
  sha256_init(&hash);
  sha256_update(&hash, bytes, (const uint8_t *)text);
  sha256_digest(&hash, SHA256_DIGEST_SIZE, digest);
  explicit_bzero(&hash, sizeof hash);
}

/* The text of the file that TUTTI_SECRET names, less line ends at its end. */
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

/* Read once for each value of the setting; a failure is found anew each time. */
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

bool greet_secret(void) { return param_text(PARAM_TUTTI_SECRET)[0] != '\0'; }

ncclResult_t greet_check(void) {
  struct secret secret;
  const ncclResult_t result = secret_get(&secret);
  explicit_bzero(&secret, sizeof secret);
  return result;
}

/* Everything that a proof vouches for. */
struct proved {
  char who[8]; /* "dialer" or "acceptor": a proof sent back proves nothing */
  uint16_t version;
  uint8_t kind, welcome;
  uint32_t padding;
  uint64_t key;
  uint8_t dialer_nonce[NONCE_BYTES], acceptor_nonce[NONCE_BYTES];
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
                        const uint8_t *dialer_nonce, const uint8_t *acceptor_nonce) {
  memset(proved, 0, sizeof *proved);
  snprintf(proved->who, sizeof proved->who, "%s", who);
  proved->version = GREET_VERSION;
  proved->kind = kind;
  proved->key = key;
  memcpy(proved->dialer_nonce, dialer_nonce, NONCE_BYTES);
  memcpy(proved->acceptor_nonce, acceptor_nonce, NONCE_BYTES);
}

static void head_fill(struct greet_head *head, enum message_type type) {
  memset(head, 0, sizeof *head);
  head->magic = GREET_MAGIC;
  head->version = GREET_VERSION;
  head->type = (uint8_t)type;
}

/* ---- counts ---- */

enum reason { REASON_STRANGER, REASON_SECRET, REASON_VERSION, REASON_LATE, REASON_REFUSED, REASON_COUNT };
static atomic_uint_fast64_t counts[REASON_COUNT];
static atomic_uint_fast64_t told_ns[REASON_COUNT];

/* Counts it, and says so once a minute for each reason. What strangers do is no error of the program's, so it
 * does not become the last error; another secret or version is what somebody will want to know. */
static void turned_away(int fd, enum reason reason, const char *why) {
  const uint64_t count = atomic_fetch_add(&counts[reason], 1) + 1;
  const uint64_t now = os_time_ns();
  uint64_t before = atomic_load(&told_ns[reason]);
  if (before != 0 && now - before < 60 * NS_PER_SECOND) return;
  if (!atomic_compare_exchange_strong(&told_ns[reason], &before, now)) return;
  const struct sock_address peer = sock_peer(fd);
  char text[SOCK_TEXT_BYTES];
  sock_address_text(&peer, text);
  if (reason == REASON_SECRET || reason == REASON_VERSION)
    log_warn("a connection from %s was turned away: %s (%llu so far)", text, why, (unsigned long long)count);
  else
    log_info(LOG_BOOTSTRAP, "a connection from %s was turned away: %s (%llu so far)", text, why,
             (unsigned long long)count);
}

struct greet_counts greet_counted(void) {
  struct greet_counts counted;
  counted.strangers = atomic_load(&counts[REASON_STRANGER]);
  counted.wrong_secret = atomic_load(&counts[REASON_SECRET]);
  counted.wrong_version = atomic_load(&counts[REASON_VERSION]);
  counted.late = atomic_load(&counts[REASON_LATE]);
  counted.refused = atomic_load(&counts[REASON_REFUSED]);
  return counted;
}

/* ---- the acceptor's side ---- */

static struct greet_head head_of(const uint8_t bytes[64]) {
  struct greet_head head;
  memcpy(&head, bytes, sizeof head);
  return head;
}

void greet_begin(struct greeting *greeting, int fd) {
  memset(greeting, 0, sizeof *greeting);
  greeting->fd = fd;
  greeting->phase = PHASE_HELLO;
  greeting->begin_ns = os_time_ns();
}

static enum greet_state drop(struct greeting *greeting, enum reason reason, const char *why) {
  turned_away(greeting->fd, reason, why);
  greeting->phase = PHASE_GONE;
  return GREET_GONE;
}

/* One message, whole or not at all: the socket's buffer is empty but for a challenge, so that what does not
 * fit now never will. */
static bool answer_send(const struct greeting *greeting, bool welcome, const char *sentence,
                        const struct secret *secret) {
  struct {
    struct greet_head head;
    struct greet_verdict verdict;
  } answer;
  static_assert(sizeof answer == sizeof(struct greet_head) + sizeof(struct greet_verdict), "no padding");
  memset(&answer, 0, sizeof answer);
  head_fill(&answer.head, MESSAGE_ANSWER);
  answer.head.welcome = welcome;
  snprintf(answer.verdict.sentence, SENTENCE_BYTES, "%s", sentence);
  if (secret && secret->set) {
    struct proved proved;
    proved_fill(&proved, "accept", (uint8_t)greeting->kind, greeting->key, greeting->other + NONCE_BYTES,
                greeting->own + NONCE_BYTES);
    proved.welcome = welcome;
    memcpy(proved.sentence, answer.verdict.sentence, SENTENCE_BYTES);
    prove(secret, &proved, answer.verdict.proof);
  }
  return sock_send_some(greeting->fd, &answer, sizeof answer) == (ptrdiff_t)sizeof answer;
}

/* Drops a dialer that speaks our language, and tells it why: where both ends are one process, its error is
 * the last. */
static enum greet_state refuse(struct greeting *greeting, enum reason reason, const char *why) {
  drop(greeting, reason, why);
  answer_send(greeting, false, why, NULL);
  return GREET_GONE;
}

static void challenge_fill(struct greeting *greeting) {
  struct greet_head head;
  head_fill(&head, MESSAGE_CHALLENGE);
  nonce_draw(head.nonce);
  memcpy(greeting->own, &head, sizeof head);
  greeting->phase = PHASE_CHALLENGE;
  greeting->moved = 0;
}

/* The hello is whole: goes on to the next phase, or drops the dialer. */
static enum greet_state hello_judge(struct greeting *greeting, const struct secret *secret) {
  const struct greet_head hello = head_of(greeting->other);
  if (hello.version != GREET_VERSION) {
    char why[SENTENCE_BYTES];
    snprintf(why, sizeof why, "its version of the protocol is %u, here it is %u: use one library",
             hello.version, GREET_VERSION);
    return refuse(greeting, REASON_VERSION, why);
  }
  if (hello.type != MESSAGE_HELLO || hello.kind < GREET_CHECK_IN || hello.kind > GREET_SHARE)
    return drop(greeting, REASON_STRANGER, "no hello");
  if (secret->set && !hello.secret)
    return refuse(greeting, REASON_SECRET, "TUTTI_SECRET is set at the acceptor and not at the dialer");
  if (!secret->set && hello.secret)
    return refuse(greeting, REASON_SECRET, "TUTTI_SECRET is set at the dialer and not at the acceptor");
  greeting->kind = (enum greet_kind)hello.kind;
  greeting->key = hello.key;
  if (secret->set) challenge_fill(greeting);
  else greeting->phase = PHASE_DONE;
  return GREET_MORE;
}

/* The proof lies where the hello's head was; the hello's random number is still behind it. */
static enum greet_state proof_judge(struct greeting *greeting, const struct secret *secret) {
  struct proved proved;
  uint8_t proof[PROOF_BYTES];
  proved_fill(&proved, "dialer", (uint8_t)greeting->kind, greeting->key, greeting->other + NONCE_BYTES,
              greeting->own + NONCE_BYTES);
  prove(secret, &proved, proof);
  if (!memeql_sec(proof, greeting->other, PROOF_BYTES))
    return refuse(greeting, REASON_SECRET, "TUTTI_SECRET is another one at the dialer than at the acceptor");
  greeting->phase = PHASE_DONE;
  return GREET_MORE;
}

/* Moves what can be moved of this phase's message: 1: it is whole; 0: later; -1: the connection is gone. */
static int message_move(struct greeting *greeting) {
  const bool sends = greeting->phase == PHASE_CHALLENGE;
  const uint32_t bytes = greeting->phase == PHASE_PROOF ? PROOF_BYTES : (uint32_t)sizeof greeting->other;
  while (greeting->moved < bytes) {
    uint8_t *message = (sends ? greeting->own : greeting->other) + greeting->moved;
    const size_t left = bytes - greeting->moved;
    const ptrdiff_t moved =
        sends ? sock_send_some(greeting->fd, message, left) : sock_receive_some(greeting->fd, message, left);
    if (moved <= 0) return (int)moved;
    greeting->moved += (uint32_t)moved;
  }
  return 1;
}

/* Whoever does not begin with the magic number is not waited for. */
static bool magic_begins(const struct greeting *greeting) {
  const uint64_t magic = GREET_MAGIC;
  const size_t known = greeting->moved < sizeof magic ? greeting->moved : sizeof magic;
  return greeting->phase != PHASE_HELLO || memcmp(greeting->other, &magic, known) == 0;
}

static enum greet_state phase_end(struct greeting *greeting, const struct secret *secret) {
  if (greeting->phase == PHASE_HELLO) return hello_judge(greeting, secret);
  if (greeting->phase == PHASE_PROOF) return proof_judge(greeting, secret);
  greeting->phase = PHASE_PROOF;
  greeting->moved = 0;
  return GREET_MORE;
}

static enum greet_state greet_advance(struct greeting *greeting, const struct secret *secret) {
  while (greeting->phase < PHASE_DONE) {
    const int whole = message_move(greeting);
    if (whole < 0) return drop(greeting, REASON_STRANGER, "it hung up in the middle of the greeting");
    if (!magic_begins(greeting)) return drop(greeting, REASON_STRANGER, "it speaks another language");
    if (whole > 0) {
      if (phase_end(greeting, secret) == GREET_GONE) return GREET_GONE;
    } else {
      if (os_time_ns() - greeting->begin_ns < GREET_SECONDS * NS_PER_SECOND) return GREET_MORE;
      return drop(greeting, REASON_LATE, "it did not greet in time");
    }
  }
  return GREET_DONE;
}

enum greet_state greet_step(struct greeting *greeting) {
  struct secret secret;
  if (greeting->phase == PHASE_DONE) return GREET_DONE;
  if (greeting->phase == PHASE_GONE) return GREET_GONE;
  if (secret_get(&secret) != ncclSuccess)
    return refuse(greeting, REASON_REFUSED, "the acceptor cannot read its TUTTI_SECRET");
  const enum greet_state state = greet_advance(greeting, &secret);
  explicit_bzero(&secret, sizeof secret);
  return state;
}

bool greet_answer(struct greeting *greeting, const char *refusal) {
  struct secret secret;
  if (greeting->phase != PHASE_DONE || secret_get(&secret) != ncclSuccess) return false;
  if (refusal) turned_away(greeting->fd, REASON_REFUSED, refusal);
  const bool sent = answer_send(greeting, refusal == NULL, refusal ? refusal : "", &secret);
  explicit_bzero(&secret, sizeof secret);
  return sent;
}

/* ---- the dialer's side ---- */

struct dialing {
  int fd;
  const struct sock_wait *wait;
  struct greet_head hello, challenge;
  struct secret secret;
};

static const char *dial_what(const struct dialing *dialing) {
  return dialing->wait && dialing->wait->what ? dialing->wait->what : "connection with";
}

/* The next head, which must be an acceptor's. */
static ncclResult_t head_receive(const struct dialing *dialing, const char *address,
                                 struct greet_head *head) {
  TRY(sock_receive(dialing->fd, head, sizeof *head, dialing->wait));
  if (head->magic != GREET_MAGIC)
    return log_fail(ncclRemoteError,
                    "%s %s: something else than this library answers there: check the address",
                    dial_what(dialing), address);
  if (head->version != GREET_VERSION && head->type != MESSAGE_ANSWER)
    return log_fail(ncclRemoteError,
                    "%s %s: its version of the protocol is %u, here it is %u: use one library for all ranks",
                    dial_what(dialing), address, head->version, GREET_VERSION);
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

/* Without a challenge its random number stays zero, which an acceptor with the secret never proves. */
static bool answer_is_proved(const struct dialing *dialing, const struct greet_head *head,
                             const struct greet_verdict *verdict) {
  struct proved proved;
  uint8_t proof[PROOF_BYTES];
  if (!dialing->secret.set) return true;
  proved_fill(&proved, "accept", dialing->hello.kind, dialing->hello.key, dialing->hello.nonce,
              dialing->challenge.nonce);
  proved.welcome = head->welcome;
  memcpy(proved.sentence, verdict->sentence, SENTENCE_BYTES);
  prove(&dialing->secret, &proved, proof);
  return memeql_sec(proof, verdict->proof, PROOF_BYTES);
}

/* A stranger's sentence goes into the log: printable letters alone. */
static void sentence_clean(struct greet_verdict *verdict) {
  verdict->sentence[SENTENCE_BYTES - 1] = '\0';
  for (char *letter = verdict->sentence; *letter; letter++)
    if (*letter < ' ' || *letter > '~') *letter = '?';
}

static ncclResult_t answer_judge(const struct dialing *dialing, const char *address,
                                 const struct greet_head *head) {
  struct greet_verdict verdict;
  TRY(sock_receive(dialing->fd, &verdict, sizeof verdict, dialing->wait));
  const bool proved = answer_is_proved(dialing, head, &verdict);
  sentence_clean(&verdict);
  if (head->welcome != 1)
    return log_fail(ncclRemoteError, "%s %s: refused: %s", dial_what(dialing), address,
                    verdict.sentence[0] ? verdict.sentence : "no reason given");
  if (!proved)
    return log_fail(ncclRemoteError,
                    "%s %s: it does not know TUTTI_SECRET: set the same one for all processes of the job",
                    dial_what(dialing), address);
  return ncclSuccess;
}

static ncclResult_t dial(struct dialing *dialing, const char *address) {
  struct greet_head head;
  TRY(sock_send(dialing->fd, &dialing->hello, sizeof dialing->hello, dialing->wait));
  TRY(head_receive(dialing, address, &head));
  if (head.type == MESSAGE_CHALLENGE && dialing->secret.set) {
    dialing->challenge = head;
    TRY(proof_send(dialing));
    TRY(head_receive(dialing, address, &head));
  }
  if (head.type != MESSAGE_ANSWER)
    return log_fail(ncclRemoteError, "%s %s: it does not keep to the greeting: check the address",
                    dial_what(dialing), address);
  return answer_judge(dialing, address, &head);
}

ncclResult_t greet_dial(int fd, enum greet_kind kind, uint64_t key, const struct sock_wait *wait) {
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

/* ---- the dialer's side for whoever must not wait ---- */

enum dialer_phase { DIALER_HELLO, DIALER_HEAD, DIALER_PROOF, DIALER_VERDICT, DIALER_DONE, DIALER_GONE };
static_assert(sizeof(struct greet_verdict) == sizeof(((struct greet_dialer *)0)->verdict), "a verdict fits");

/* What the steps share with greet_dial(): `dialing` as far as proofs need it. */
static ncclResult_t dialing_of(const struct greet_dialer *dialer, struct dialing *dialing) {
  memset(dialing, 0, sizeof *dialing);
  dialing->fd = dialer->fd;
  dialing->hello = head_of(dialer->hello);
  dialing->challenge = head_of(dialer->challenge);
  return secret_get(&dialing->secret);
}

void greet_dialer_begin(struct greet_dialer *dialer, int fd, enum greet_kind kind, uint64_t key) {
  struct greet_head hello;
  memset(dialer, 0, sizeof *dialer);
  dialer->fd = fd;
  head_fill(&hello, MESSAGE_HELLO);
  hello.kind = (uint8_t)kind;
  hello.key = key;
  hello.secret = greet_secret();
  nonce_draw(hello.nonce);
  memcpy(dialer->hello, &hello, sizeof hello);
}

/* Moves what can be moved of this phase's message: 1: it is whole; 0: later; -1: the connection is gone. */
static int dialer_move(struct greet_dialer *dialer) {
  uint8_t *const messages[] = {dialer->hello, dialer->head, dialer->proof, dialer->verdict};
  const size_t bytes[] = {sizeof dialer->hello, sizeof dialer->head, sizeof dialer->proof,
                          sizeof dialer->verdict};
  const bool sends = dialer->phase == DIALER_HELLO || dialer->phase == DIALER_PROOF;
  uint8_t *message = messages[dialer->phase] + dialer->moved;
  const size_t left = bytes[dialer->phase] - dialer->moved;
  const ptrdiff_t moved =
      sends ? sock_send_some(dialer->fd, message, left) : sock_receive_some(dialer->fd, message, left);
  if (moved < 0) return -1;
  dialer->moved += (uint32_t)moved;
  return dialer->moved == bytes[dialer->phase];
}

static const char *dialer_head_judge(struct greet_dialer *dialer, const struct dialing *dialing) {
  const struct greet_head head = head_of(dialer->head);
  if (head.magic != GREET_MAGIC) return "something else than this library answers there: check the address";
  if (head.type == MESSAGE_ANSWER) {
    dialer->phase = DIALER_VERDICT;
    return NULL;
  }
  if (head.version != GREET_VERSION) return "another version of the protocol: use one library for all ranks";
  if (head.type != MESSAGE_CHALLENGE || !dialing->secret.set || dialer->challenged) {
    return "it does not keep to the greeting: check the address";
  }
  struct proved proved;
  memcpy(dialer->challenge, dialer->head, sizeof dialer->challenge);
  proved_fill(&proved, "dialer", dialing->hello.kind, dialing->hello.key, dialing->hello.nonce, head.nonce);
  prove(&dialing->secret, &proved, dialer->proof);
  dialer->challenged = true;
  dialer->phase = DIALER_PROOF;
  return NULL;
}

static const char *dialer_verdict_judge(struct greet_dialer *dialer, const struct dialing *dialing) {
  const struct greet_head head = head_of(dialer->head);
  struct greet_verdict verdict;
  memcpy(&verdict, dialer->verdict, sizeof verdict);
  const bool proved =
      (dialer->challenged || !dialing->secret.set) && answer_is_proved(dialing, &head, &verdict);
  sentence_clean(&verdict);
  memcpy(dialer->verdict, &verdict, sizeof verdict);
  if (head.welcome != 1)
    return verdict.sentence[0] != '\0' ? (const char *)dialer->verdict : "no reason given";
  if (!proved) return "it does not know TUTTI_SECRET: set the same one for all processes of the job";
  dialer->phase = DIALER_DONE;
  return NULL;
}

/* The message of this phase is whole. Why not to go on, or NULL. */
static const char *dialer_phase_end(struct greet_dialer *dialer) {
  struct dialing dialing;
  const char *wrong = NULL;
  const enum dialer_phase phase = (enum dialer_phase)dialer->phase;
  if (dialing_of(dialer, &dialing) != ncclSuccess) wrong = "TUTTI_SECRET cannot be read here";
  dialer->moved = 0;
  if (wrong == NULL && phase == DIALER_HEAD) wrong = dialer_head_judge(dialer, &dialing);
  else if (wrong == NULL && phase == DIALER_VERDICT) wrong = dialer_verdict_judge(dialer, &dialing);
  else dialer->phase = DIALER_HEAD;
  explicit_bzero(&dialing.secret, sizeof dialing.secret);
  return wrong;
}

enum greet_state greet_dialer_step(struct greet_dialer *dialer, char *reason, size_t reason_bytes) {
  while (dialer->phase < DIALER_DONE) {
    const int whole = dialer_move(dialer);
    if (whole == 0) return GREET_MORE;
    const char *wrong = whole < 0 ? "" : dialer_phase_end(dialer);
    if (wrong == NULL) continue;
    dialer->phase = DIALER_GONE;
    snprintf(reason, reason_bytes, "%s", wrong);
  }
  return dialer->phase == DIALER_DONE ? GREET_DONE : GREET_GONE;
}
