/* allgather.c: the rounds in which every process gets the peer info of all. In round r a process sends the
 * blocks of 2^r processes, its own and those after it, to the process 2^r before it, and receives as many
 * from the process 2^r after it; the last round sends the remainder. ceil(log2 processes) rounds (Bruck et
 * al., 1997). Links are made when their round starts and end with it, except those that the watch keeps. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/gather_inner.h"

#define FRAME_MOST_BYTES 0x3fffffffu
#define LINK_QUEUED_MOST ((size_t)1 << 30)

/* Keeps a ring and chords of about the square root of the processes, so that each process has four
 * neighbours. */
bool gather_keeps(const struct gather *gather, uint32_t round) {
  return round == 0 || round == gather->roster.round_count / 2;
}

/* ---- links ---- */

static struct gather_link *link_of(struct gather *gather, const struct control_conn *conn) {
  for (uint32_t i = 0; i < ROUNDS_MOST; i++) {
    if (gather->to[i].conn == conn) return &gather->to[i];
    if (gather->from[i].conn == conn) return &gather->from[i];
  }
  return NULL;
}

static uint32_t link_limit(struct control_conn *conn, uint32_t kind) {
  const struct gather *gather = (const struct gather *)conn->owner;
  if (!gather) return CONTROL_UNKNOWN;
  const uint64_t each = sizeof(struct wire_block) + sizeof(struct wire_info) + GATHER_INFO_MOST;
  const uint64_t most = sizeof(struct wire_allgather) + each * gather->rank_count;
  switch (kind) {
    case FRAME_HELLO: return sizeof(struct wire_hello) + sizeof(struct wire_process);
    case FRAME_ALLGATHER: return most < FRAME_MOST_BYTES ? (uint32_t)most : FRAME_MOST_BYTES;
    case FRAME_FAIL: return sizeof(struct wire_fail) + WIRE_TEXT_MOST;
    default: return CONTROL_UNKNOWN;
  }
}

static bool hello_take(struct gather *gather, struct control_conn *conn, struct wire_reader *reader) {
  struct wire_hello hello;
  struct wire_process peer;
  if (!wire_take(reader, &hello, sizeof hello) || !wire_take(reader, &peer, sizeof peer)) return false;
  if (hello.round >= ROUNDS_MOST || gather->from[hello.round].conn || gather->raw[hello.round]) return false;
  text_clean(peer.host, sizeof peer.host);
  gather->from[hello.round].conn = conn;
  gather->from[hello.round].peer = peer;
  gather->from[hello.round].process_index = hello.process_index;
  conn->round = hello.round;
  conn->number = 1; /* its hello has arrived */
  conn->beats = true;
  return true;
}

static bool allgather_take(struct gather *gather, struct control_conn *conn, uint32_t bytes) {
  if (!conn->number || bytes == 0 || gather->raw[conn->round] || gather->from[conn->round].conn != conn)
    return false;
  gather->raw[conn->round] = control_take_body(conn);
  gather->raw_bytes[conn->round] = bytes;
  os_cond_broadcast(&gather->changed);
  return true;
}

static bool news_take(struct gather *gather, struct wire_reader *reader) {
  struct wire_fail fail;
  if (!wire_take(reader, &fail, sizeof fail)) return false;
  if (gather->news) return true;
  gather->news = true;
  gather->news_about = fail;
  wire_take_text(reader, gather->news_text, sizeof gather->news_text);
  return true;
}

static void link_frame(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  struct gather *gather = (struct gather *)conn->owner;
  struct wire_reader reader = {body, bytes};
  bool good = false;
  gather->cost.received_bytes += bytes + sizeof(struct frame_head);
  if (kind == FRAME_HELLO && !conn->number) good = hello_take(gather, conn, &reader);
  else if (kind == FRAME_ALLGATHER) good = allgather_take(gather, conn, bytes);
  else if (kind == FRAME_FAIL) good = news_take(gather, &reader);
  if (good) return;
  struct gather_link *link = link_of(gather, conn);
  if (link) link->conn = NULL;
  control_drop(conn);
}

static void link_gone(struct control_conn *conn, const char *why) {
  struct gather *gather = (struct gather *)conn->owner;
  struct gather_link *link = gather ? link_of(gather, conn) : NULL;
  char who[256];
  if (!link) return;
  link->conn = NULL;
  if (!why) return;
  if (!gather->complete) {
    gather_suspect(gather, &link->peer, why);
  } else if (!gather->news) {
    gather->news = true;
    gather->news_about.process_index = link->process_index;
    gather->news_about.code = ncclRemoteError;
    gather->news_about.key = 0;
    snprintf(gather->news_text, sizeof gather->news_text, "%s %s",
             wire_process_text(&link->peer, who, sizeof who), why);
  }
}

static const struct control_class link_class = {"link", link_limit,       link_frame, link_gone,
                                                false,  LINK_QUEUED_MOST, 0};

const char *gather_accept(struct control_conn *conn) {
  struct gather *gather = gather_find(conn->key);
  if (!gather) return "no gather of this process is in progress: its communicator was made, or has failed";
  conn->conn_class = &link_class;
  conn->owner = gather;
  conn->number = 0;
  return NULL;
}

/* ---- blocks ---- */

static void own_about(const struct gather *gather, struct wire_process *about) {
  memset(about, 0, sizeof *about);
  about->uid = gather->uid;
  about->address = gather->address;
  about->pid = (uint32_t)os_pid();
  os_host_name(about->host, sizeof about->host);
}

static ncclResult_t own_block_build(struct gather *gather) {
  struct wire_writer writer = {NULL, 0, 0, false};
  struct wire_block block;
  memset(&block, 0, sizeof block);
  block.bytes = (uint32_t)(sizeof block + gather->own_infos.used);
  block.process_index = gather->roster.process_index;
  block.rank_count = gather->own_count;
  block.address = gather->address;
  wire_put(&writer, &block, sizeof block);
  wire_put(&writer, gather->own_infos.bytes, gather->own_infos.used);
  const uint32_t count = gather->roster.process_count;
  gather->blocks = (const uint8_t **)os_alloc(count * sizeof(const uint8_t *));
  gather->ranks = (struct gather_rank *)os_alloc(gather->rank_count * sizeof *gather->ranks);
  gather->addresses = (struct sock_address *)os_alloc(count * sizeof *gather->addresses);
  gather->own_block = writer.bytes;
  if (writer.failed || !gather->blocks || !gather->ranks || !gather->addresses) {
    gather_fail(gather, ncclSystemError, "the peer info of %u ranks" LOG_OUT_OF_MEMORY, gather->rank_count);
    return gather->code;
  }
  gather->blocks[gather->roster.process_index] = gather->own_block;
  return ncclSuccess;
}

static uint32_t block_bytes(const uint8_t *block) {
  struct wire_block head;
  memcpy(&head, block, sizeof head);
  return head.bytes;
}

/* Number of blocks that round r transfers. */
static uint32_t round_blocks(const struct gather *gather, uint32_t round) {
  const uint32_t distance = 1u << round, rest = gather->roster.process_count - distance;
  return distance < rest ? distance : rest;
}

static bool blocks_read(struct gather *gather, uint32_t round) {
  struct wire_reader reader = {gather->raw[round], gather->raw_bytes[round]};
  struct wire_allgather head;
  const uint32_t count = round_blocks(gather, round), processes = gather->roster.process_count;
  if (!wire_take(&reader, &head, sizeof head) || head.round != round || head.block_count != count)
    return false;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t process_index = (gather->roster.process_index + (1u << round) + i) % processes;
    struct wire_block block;
    if (reader.left < sizeof block) return false;
    memcpy(&block, reader.at, sizeof block);
    if (block.process_index != process_index || block.bytes < sizeof block || gather->blocks[process_index])
      return false;
    gather->blocks[process_index] = reader.at;
    if (!wire_take(&reader, NULL, block.bytes)) return false;
  }
  return reader.left == 0;
}

static bool infos_read(struct gather *gather, uint32_t process_index) {
  struct wire_block block;
  struct wire_info info;
  struct wire_reader reader = {gather->blocks[process_index], block_bytes(gather->blocks[process_index])};
  wire_take(&reader, &block, sizeof block);
  gather->addresses[process_index] = block.address;
  for (uint32_t i = 0; i < block.rank_count; i++) {
    if (!wire_take(&reader, &info, sizeof info) || info.rank >= gather->rank_count) return false;
    struct gather_rank *gathered = &gather->ranks[info.rank];
    if (gathered->info || info.bytes > GATHER_INFO_MOST) return false;
    gathered->info = reader.at;
    gathered->info_bytes = info.bytes;
    gathered->process_index = process_index;
    if (!wire_take(&reader, NULL, info.bytes + wire_padding(info.bytes))) return false;
  }
  return reader.left == 0;
}

/* ---- rounds ---- */

/* Locked. */
static void round_send(struct gather *gather, uint32_t round, const struct wire_process *about) {
  const struct wire_hello hello = {gather->roster.process_index, round};
  const struct wire_allgather head = {round, round_blocks(gather, round)};
  struct control_conn *conn = gather->to[round].conn;
  struct wire_writer writer = {NULL, 0, 0, false};
  for (uint32_t i = 0; i < head.block_count; i++) {
    const uint8_t *block = gather->blocks[(gather->roster.process_index + i) % gather->roster.process_count];
    wire_put(&writer, block, block_bytes(block));
  }
  if (writer.failed) {
    gather_fail(gather, ncclSystemError, "passing peer info on" LOG_OUT_OF_MEMORY);
    return;
  }
  control_send(conn, FRAME_HELLO, &hello, sizeof hello, about, sizeof *about);
  control_send(conn, FRAME_ALLGATHER, &head, sizeof head, writer.bytes, writer.used);
  gather->cost.sent_bytes +=
      2 * sizeof(struct frame_head) + sizeof hello + sizeof *about + sizeof head + writer.used;
  wire_free(&writer);
}

static void round_dial(struct gather *gather, uint32_t round, const struct wire_process *about) {
  struct gather_link *link = &gather->to[round];
  struct session session;
  int fd = -1;
  const ncclResult_t result = gather_dial(gather, &link->peer.address, HANDSHAKE_LINK, link->peer.uid,
                                          &gather->secret, "reaching another process at", &fd, &session);
  control_lock();
  if (result != ncclSuccess) {
    gather_suspect(gather, &link->peer, "cannot be reached from another process of the communicator");
  } else if (gather->code != ncclSuccess) {
    sock_close(fd);
  } else if (!(link->conn = control_adopt(fd, &session, &link_class, gather))) {
    gather_fail(gather, ncclSystemError, "a connection to another process" LOG_OUT_OF_MEMORY);
  } else {
    link->conn->beats = true;
    round_send(gather, round, about);
  }
  control_unlock();
}

static void deadline_pass(struct gather *gather, uint32_t round) {
  const struct gather_link *link = &gather->from[round];
  char who[256];
  if (gather->missing[0]) {
    gather_fail(gather, ncclRemoteError, "%s", gather->missing);
  } else if (link->conn) {
    gather_fail(gather, ncclRemoteError, "%s did not send its peer info in time",
                wire_process_text(&link->peer, who, sizeof who));
  } else {
    gather_fail(gather, ncclRemoteError, "process %u of %u did not send its peer info in time",
                (gather->roster.process_index + (1u << round)) % gather->roster.process_count,
                gather->roster.process_count);
  }
}

/* Locked: waits until this round's blocks have arrived. */
static ncclResult_t round_receive(struct gather *gather, uint32_t round) {
  char who[256];
  while (gather->code == ncclSuccess && !gather->raw[round]) {
    if (!gather_await(gather)) deadline_pass(gather, round);
  }
  if (gather->code != ncclSuccess) return gather->code;
  struct gather_link *from = &gather->from[round];
  if (!blocks_read(gather, round)) {
    gather_fail(gather, ncclInternalError,
                "%s sent peer info that cannot be read; load the same library everywhere",
                wire_process_text(&from->peer, who, sizeof who));
    return gather->code;
  }
  if (gather_keeps(gather, round)) return ncclSuccess;
  control_end(from->conn);
  from->conn = NULL;
  return ncclSuccess;
}

static ncclResult_t allgather_finish(struct gather *gather) {
  bool good = true;
  for (uint32_t i = 0; good && i < gather->roster.process_count; i++) good = infos_read(gather, i);
  for (uint32_t i = 0; good && i < gather->rank_count; i++) good = gather->ranks[i].info != NULL;
  if (!good)
    gather_fail(gather, ncclInternalError,
                "the peer info of the ranks does not match; load the same library "
                "everywhere");
  else gather->complete = true;
  return gather->code;
}

ncclResult_t gather_allgather(struct gather *gather) {
  struct wire_process about;
  control_lock();
  gather->missing[0] = '\0';
  ncclResult_t result = own_block_build(gather);
  own_about(gather, &about);
  control_unlock();
  for (uint32_t round = 0; result == ncclSuccess && round < gather->roster.round_count; round++) {
    round_dial(gather, round, &about);
    control_lock();
    result = round_receive(gather, round);
    control_unlock();
  }
  TRY(result);
  control_lock();
  result = allgather_finish(gather);
  control_unlock();
  return result;
}
