/* relay.c: several unique ids for one communicator: ranks check in with different roots, and all roots but
 * the first pass what they hear on to the first, over one connection each, and its answers back. So no
 * process holds connections of all the others. Parties and the first root notice no difference. */
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "core/bootstrap/control_conn.h"
#include "core/bootstrap/root.h"

#define PENDING_MOST_BYTES (64u << 20)
#define DIALERS_MOST 64u
#define SECOND_NS 1000000000ull

/* A thread that reaches the first root: connecting takes time that the server has not. */
struct dialer {
  os_thread thread;
  uint64_t key;
  struct sock_address to;
  uint32_t cancel;
  bool started, done;
};
static struct dialer dialers[DIALERS_MOST];

/* ---- at the process that passes on ---- */

static uint32_t up_limit(struct control_conn *conn, uint32_t kind) {
  (void)conn;
  return kind == FRAME_RELAY ? root_relay_limit() : CONTROL_UNKNOWN;
}

static void up_frame(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  struct root *root = (struct root *)conn->owner;
  struct wire_reader reader = {body, bytes};
  struct wire_relay relay;
  (void)kind;
  if (!root || !wire_take(&reader, &relay, sizeof relay)) return;
  for (uint32_t i = 0; i < root->party_count; i++) {
    const struct root_party *party = root->parties[i];
    if (party->about.uid != relay.uid || !party->conn) continue;
    control_send(party->conn, (enum frame_kind)relay.kind, NULL, 0, reader.at, reader.left);
  }
}

static void up_gone(struct control_conn *conn, const char *why) {
  struct root *root = (struct root *)conn->owner;
  char at[SOCK_TEXT_BYTES];
  if (!root) return;
  root->up = NULL;
  if (why) {
    root_fail(root, ncclRemoteError, "the first root, at %s, %s", sock_address_text(&root->first_root, at),
              why);
  }
}

static const struct control_class up_class = {"relay", up_limit, up_frame, up_gone, true};

static void dialer_adopt(const struct dialer *dialer, int fd, ncclResult_t result) {
  char at[SOCK_TEXT_BYTES];
  control_lock();
  struct root *root = root_find(dialer->key);
  if (!root || !root->relay || root->doomed) {
    sock_close(fd);
  } else if (result == ncclSuccess && (root->up = control_adopt(fd, &up_class, root)) != NULL) {
    root->up->beats = true;
    const uint8_t *at_byte = root->pending.bytes;
    for (size_t left = root->pending.used; left > 0;) {
      struct frame_head head;
      memcpy(&head, at_byte, sizeof head);
      control_send(root->up, FRAME_RELAY, NULL, 0, at_byte + sizeof head, head.bytes);
      at_byte += sizeof head + head.bytes;
      left -= sizeof head + head.bytes;
    }
    wire_free(&root->pending);
  } else {
    root_fail(root, ncclRemoteError, "the first root, at %s, cannot be reached from this one",
              sock_address_text(&root->first_root, at));
  }
  control_unlock();
}

static void *dialer_body(void *argument) {
  struct dialer *dialer = (struct dialer *)argument;
  const uint64_t seconds = (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS);
  const struct sock_wait wait = {os_time_ns() + seconds * SECOND_NS, &dialer->cancel,
                                 "passing ranks on to the first root"};
  int fd = -1;
  ncclResult_t result = sock_connect(&dialer->to, &wait, &fd);
  if (result == ncclSuccess) result = greet_dial(fd, GREET_CHECK_IN, dialer->key, &wait);
  if (result != ncclSuccess) {
    sock_close(fd);
    fd = -1;
  }
  dialer_adopt(dialer, fd, result);
  __atomic_store_n(&dialer->done, true, __ATOMIC_RELEASE);
  return NULL;
}

void root_relay_open(struct root *root) {
  if (root->dialed) return;
  root->dialed = true;
  for (uint32_t i = 0; i < DIALERS_MOST; i++) {
    struct dialer *dialer = &dialers[i];
    if (dialer->started && !__atomic_load_n(&dialer->done, __ATOMIC_ACQUIRE)) continue;
    if (dialer->started) os_thread_join(dialer->thread);
    memset(dialer, 0, sizeof *dialer);
    dialer->key = root->key;
    dialer->to = root->first_root;
    dialer->started = os_thread_start(&dialer->thread, dialer_body, dialer);
    if (dialer->started) return;
    break;
  }
  root_fail(root, ncclSystemError, "no thread to reach the first root with; raise the limit of threads");
}

void root_relay_up(struct root *root, const struct root_party *party, uint32_t kind,
                   struct wire_reader *reader) {
  const struct wire_relay relay = {party->about.uid, kind, 0};
  if (root->up) {
    control_send(root->up, FRAME_RELAY, &relay, sizeof relay, reader->at, reader->left);
    return;
  }
  if (root->phase == ROOT_FAILED || root->pending.used > PENDING_MOST_BYTES) return;
  const struct frame_head head = {(uint32_t)(sizeof relay + reader->left), FRAME_RELAY, 0};
  wire_put(&root->pending, &head, sizeof head);
  wire_put(&root->pending, &relay, sizeof relay);
  wire_put(&root->pending, reader->at, reader->left);
  if (root->pending.failed) root_fail(root, ncclSystemError, "no memory to pass ranks on to the first root");
}

void relay_stop(void) {
  for (uint32_t i = 0; i < DIALERS_MOST; i++) {
    __atomic_store_n(&dialers[i].cancel, 1, __ATOMIC_RELEASE);
    if (dialers[i].started) os_thread_join(dialers[i].thread);
    dialers[i].started = false;
  }
}

void relay_forget(void) { memset(dialers, 0, sizeof dialers); }

/* ---- at the first root ---- */

uint32_t root_relay_limit(void) { return 8u << 20; } /* a million seats in one message, and some */

static struct root_party *relayed_find(const struct control_conn *conn, uint64_t uid) {
  for (struct root *root = root_first(); root; root = root->next) {
    for (uint32_t i = 0; root->key == conn->key && i < root->party_count; i++) {
      struct root_party *party = root->parties[i];
      if (party->conn == conn && party->about.uid == uid) return party;
    }
  }
  return NULL;
}

static void relayed_check_in(struct control_conn *conn, uint64_t uid, struct wire_reader *reader) {
  ncclResult_t code;
  const char *why;
  struct root_party *party = root_check_in(conn, true, reader, &code, &why);
  if (party) {
    party->relayed = true;
    return;
  }
  struct wire_writer writer = {NULL, 0, 0, false};
  const struct wire_relay relay = {uid, FRAME_FAIL, 0};
  const struct wire_fail fail = {0, (int32_t)code, 0};
  wire_put(&writer, &relay, sizeof relay);
  wire_put(&writer, &fail, sizeof fail);
  if (!writer.failed) control_send(conn, FRAME_RELAY, writer.bytes, writer.used, why, strlen(why));
  wire_free(&writer);
}

void root_relayed(struct control_conn *conn, struct wire_reader *reader) {
  struct wire_relay relay;
  char text[WIRE_TEXT_MOST];
  if (!wire_take(reader, &relay, sizeof relay)) return;
  if (relay.kind == FRAME_CHECK_IN) {
    relayed_check_in(conn, relay.uid, reader);
    return;
  }
  struct root_party *party = relayed_find(conn, relay.uid);
  if (!party) return;
  if (relay.kind == FRAME_GOODBYE) {
    root_party_gone(party, NULL);
  } else if (relay.kind == FRAME_GONE) {
    wire_take_text(reader, text, sizeof text);
    root_party_gone(party, text);
  } else {
    root_party_frame(party, relay.kind, reader);
  }
}

void root_relay_lost(struct control_conn *conn, const char *why) {
  for (struct root *root = root_first(); root; root = root->next) {
    for (uint32_t i = 0; i < root->party_count; i++) {
      if (root->parties[i]->conn == conn && root->parties[i]->relayed) root_party_gone(root->parties[i], why);
    }
  }
}
