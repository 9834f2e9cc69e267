/* root_forward.c: root forwarding, for several unique ids of one communicator. Ranks check in with different
 * roots; all roots but the first forward their frames to the first over one connection each, and its answers
 * back, so that no process needs a connection to every other. Processes and the first root see no difference.
 */
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "core/bootstrap/control_conn.h"
#include "core/bootstrap/root.h"

#define PENDING_MOST_BYTES (64u << 20)
#define CLIENTS_MOST 64u
#define SECOND_NS 1000000000ull

/* A thread that connects to the first root, which would block the server's thread. */
struct client {
  os_thread thread;
  uint64_t key;
  struct secret secret;
  struct sock_address to;
  uint32_t cancel;
  bool started, done;
};
static struct client clients[CLIENTS_MOST];

void root_forward_secret(const struct secret *secret, struct secret *forward) {
  secret_derive(secret, "tutti forward", NULL, 0, forward);
}

/* ---- at the forwarding process ---- */

static uint32_t up_limit(struct control_conn *conn, uint32_t kind) {
  (void)conn;
  return kind == FRAME_FORWARD ? root_forward_limit() : CONTROL_UNKNOWN;
}

static void up_frame(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  struct root *root = (struct root *)conn->owner;
  struct wire_reader reader = {body, bytes};
  struct wire_forward forward;
  (void)kind;
  if (!root || !wire_take(&reader, &forward, sizeof forward)) return;
  for (uint32_t i = 0; i < root->process_count; i++) {
    const struct root_process *process = root->processes[i];
    if (process->about.uid != forward.uid || !process->conn) continue;
    control_send(process->conn, (enum frame_kind)forward.kind, NULL, 0, reader.at, reader.left);
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

static const struct control_class up_class = {"root forwarding",  up_limit, up_frame, up_gone, true,
                                              PENDING_MOST_BYTES, 0};

static void client_adopt(const struct client *client, int fd, const struct session *session,
                         ncclResult_t result) {
  char at[SOCK_TEXT_BYTES];
  control_lock();
  struct root *root = root_find(client->key);
  if (!root || !root->forwards || root->doomed) {
    sock_close(fd);
  } else if (result == ncclSuccess && (root->up = control_adopt(fd, session, &up_class, root)) != NULL) {
    root->up->beats = true;
    const uint8_t *at_byte = root->pending.bytes;
    for (size_t left = root->pending.used; left > 0;) {
      struct frame_head head;
      memcpy(&head, at_byte, sizeof head);
      control_send(root->up, FRAME_FORWARD, NULL, 0, at_byte + sizeof head, head.bytes);
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

static void *client_body(void *argument) {
  struct client *client = (struct client *)argument;
  const uint64_t seconds = (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS);
  const struct sock_wait wait = {os_time_ns() + seconds * SECOND_NS, &client->cancel,
                                 "passing ranks on to the first root"};
  enum handshake_refusal refusal;
  struct session session;
  int fd = -1;
  memset(&session, 0, sizeof session);
  const ncclResult_t result = handshake_connect(&client->to, HANDSHAKE_CHECK_IN, secret_name(&client->secret),
                                                &client->secret, &wait, &fd, &session, &refusal);
  client_adopt(client, fd, &session, result);
  __atomic_store_n(&client->done, true, __ATOMIC_RELEASE);
  return NULL;
}

void root_forward_open(struct root *root) {
  if (root->dialed) return;
  root->dialed = true;
  for (uint32_t i = 0; i < CLIENTS_MOST; i++) {
    struct client *client = &clients[i];
    if (client->started && !__atomic_load_n(&client->done, __ATOMIC_ACQUIRE)) continue;
    if (client->started) os_thread_join(client->thread);
    memset(client, 0, sizeof *client);
    client->key = root->key;
    client->to = root->first_root;
    client->secret = root->first_forward;
    client->started = os_thread_start_named(&client->thread, "tutti-root", client_body, client);
    if (client->started) return;
    break;
  }
  root_fail(root, ncclSystemError, "no thread to reach the first root with; raise the limit of threads");
}

void root_forward_up(struct root *root, const struct root_process *process, uint32_t kind,
                     struct wire_reader *reader) {
  const struct wire_forward forward = {process->about.uid, kind, 0};
  if (root->up) {
    control_send(root->up, FRAME_FORWARD, &forward, sizeof forward, reader->at, reader->left);
    return;
  }
  if (root->phase == ROOT_FAILED || root->pending.used > PENDING_MOST_BYTES) return;
  const struct frame_head head = {(uint32_t)(sizeof forward + reader->left), FRAME_FORWARD, 0};
  wire_put(&root->pending, &head, sizeof head);
  wire_put(&root->pending, &forward, sizeof forward);
  wire_put(&root->pending, reader->at, reader->left);
  if (root->pending.failed)
    root_fail(root, ncclSystemError, "passing ranks on to the first root" LOG_OUT_OF_MEMORY);
}

void root_forward_stop(void) {
  for (uint32_t i = 0; i < CLIENTS_MOST; i++) {
    __atomic_store_n(&clients[i].cancel, 1, __ATOMIC_RELEASE);
    if (clients[i].started) os_thread_join(clients[i].thread);
    clients[i].started = false;
  }
}

void root_forward_forget(void) { memset(clients, 0, sizeof clients); }

/* ---- at the first root ---- */

uint32_t root_forward_limit(void) { return 8u << 20; } /* enough for a million ranks in one message */

static struct root_process *forwarded_find(const struct control_conn *conn, uint64_t uid) {
  for (struct root *root = root_first(); root; root = root->next) {
    for (uint32_t i = 0; root->forward_key == conn->key && i < root->process_count; i++) {
      struct root_process *process = root->processes[i];
      if (process->conn == conn && process->about.uid == uid) return process;
    }
  }
  return NULL;
}

static void forwarded_check_in(struct control_conn *conn, uint64_t uid, struct wire_reader *reader) {
  ncclResult_t code;
  const char *why;
  struct root_process *process = root_check_in(conn, true, reader, &code, &why);
  if (process) {
    process->forwarded = true;
    return;
  }
  struct wire_writer writer = {NULL, 0, 0, false};
  const struct wire_forward forward = {uid, FRAME_FAIL, 0};
  const struct wire_fail fail = {0, (int32_t)code, 0};
  wire_put(&writer, &forward, sizeof forward);
  wire_put(&writer, &fail, sizeof fail);
  if (!writer.failed) control_send(conn, FRAME_FORWARD, writer.bytes, writer.used, why, strlen(why));
  wire_free(&writer);
}

void root_forwarded(struct control_conn *conn, struct wire_reader *reader) {
  struct wire_forward forward;
  char text[WIRE_TEXT_MOST];
  if (!wire_take(reader, &forward, sizeof forward)) return;
  if (forward.kind == FRAME_CHECK_IN) {
    forwarded_check_in(conn, forward.uid, reader);
    return;
  }
  struct root_process *process = forwarded_find(conn, forward.uid);
  if (!process) return;
  if (forward.kind == FRAME_GOODBYE) {
    root_process_gone(process, NULL);
  } else if (forward.kind == FRAME_GONE) {
    wire_take_text(reader, text, sizeof text);
    root_process_gone(process, text);
  } else {
    root_process_frame(process, forward.kind, reader);
  }
}

void root_forward_lost(struct control_conn *conn, const char *why) {
  for (struct root *root = root_first(); root; root = root->next) {
    for (uint32_t i = 0; i < root->process_count; i++) {
      if (root->processes[i]->conn == conn && root->processes[i]->forwarded)
        root_process_gone(root->processes[i], why);
    }
  }
}
