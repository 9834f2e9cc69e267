/* exchange.c: the rounds in which every party gets the cards of all: in round r a party sends the blocks of
 * 2^r parties, its own and those after it, to the party 2^r before it, and gets as many from the party 2^r
 * after it; the last round sends what is left. ceil(log2 parties) rounds (Bruck et al., 1997). Links are made
 * when their round comes and end with it, but for those that the watch will keep. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/gather_inner.h"

#define FRAME_MOST_BYTES 0x3fffffffu

/* A ring, and chords of about the square root of the parties: whoever is lost has four neighbours. */
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
  const uint64_t each = sizeof(struct wire_block) + sizeof(struct wire_card) + GATHER_CARD_MOST;
  const uint64_t most = sizeof(struct wire_exchange) + each * gather->seat_count;
  switch (kind) {
    case FRAME_HELLO: return sizeof(struct wire_hello) + sizeof(struct wire_party);
    case FRAME_EXCHANGE: return most < FRAME_MOST_BYTES ? (uint32_t)most : FRAME_MOST_BYTES;
    case FRAME_FAIL: return sizeof(struct wire_fail) + WIRE_TEXT_MOST;
    default: return CONTROL_UNKNOWN;
  }
}

static bool hello_take(struct gather *gather, struct control_conn *conn, struct wire_reader *reader) {
  struct wire_hello hello;
  struct wire_party peer;
  if (!wire_take(reader, &hello, sizeof hello) || !wire_take(reader, &peer, sizeof peer)) return false;
  if (hello.round >= ROUNDS_MOST || gather->from[hello.round].conn || gather->raw[hello.round]) return false;
  text_clean(peer.host, sizeof peer.host);
  gather->from[hello.round].conn = conn;
  gather->from[hello.round].peer = peer;
  gather->from[hello.round].party = hello.party;
  conn->round = hello.round;
  conn->number = 1; /* it has said who it is */
  conn->beats = true;
  return true;
}

static bool exchange_take(struct gather *gather, struct control_conn *conn, uint32_t bytes) {
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
  else if (kind == FRAME_EXCHANGE) good = exchange_take(gather, conn, bytes);
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
  if (!gather->exchanged) {
    gather_suspect(gather, &link->peer, why);
  } else if (!gather->news) {
    gather->news = true;
    gather->news_about.party = link->party;
    gather->news_about.code = ncclRemoteError;
    gather->news_about.key = 0;
    snprintf(gather->news_text, sizeof gather->news_text, "%s %s",
             wire_party_text(&link->peer, who, sizeof who), why);
  }
}

static const struct control_class link_class = {"link", link_limit, link_frame, link_gone, false};

const char *gather_accept(struct control_conn *conn) {
  struct gather *gather = gather_find(conn->key);
  if (!gather) return "nobody waits for this party here: its communicator was made, or has failed";
  conn->conn_class = &link_class;
  conn->owner = gather;
  conn->number = 0;
  return NULL;
}

/* ---- blocks ---- */

static void own_about(const struct gather *gather, struct wire_party *about) {
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
  block.bytes = (uint32_t)(sizeof block + gather->own_cards.used);
  block.party = gather->roster.party;
  block.seat_count = gather->own_count;
  block.address = gather->address;
  wire_put(&writer, &block, sizeof block);
  wire_put(&writer, gather->own_cards.bytes, gather->own_cards.used);
  const uint32_t count = gather->roster.party_count;
  gather->blocks = (const uint8_t **)os_alloc(count * sizeof(const uint8_t *));
  gather->seats = (struct gather_seat *)os_alloc(gather->seat_count * sizeof *gather->seats);
  gather->addresses = (struct sock_address *)os_alloc(count * sizeof *gather->addresses);
  gather->own_block = writer.bytes;
  if (writer.failed || !gather->blocks || !gather->seats || !gather->addresses) {
    gather_fail(gather, ncclSystemError, "no memory for the cards of %u ranks", gather->seat_count);
    return gather->code;
  }
  gather->blocks[gather->roster.party] = gather->own_block;
  return ncclSuccess;
}

static uint32_t block_bytes(const uint8_t *block) {
  struct wire_block head;
  memcpy(&head, block, sizeof head);
  return head.bytes;
}

/* How many blocks round r carries. */
static uint32_t round_blocks(const struct gather *gather, uint32_t round) {
  const uint32_t distance = 1u << round, rest = gather->roster.party_count - distance;
  return distance < rest ? distance : rest;
}

static bool blocks_read(struct gather *gather, uint32_t round) {
  struct wire_reader reader = {gather->raw[round], gather->raw_bytes[round]};
  struct wire_exchange head;
  const uint32_t count = round_blocks(gather, round), parties = gather->roster.party_count;
  if (!wire_take(&reader, &head, sizeof head) || head.round != round || head.block_count != count)
    return false;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t party = (gather->roster.party + (1u << round) + i) % parties;
    struct wire_block block;
    if (reader.left < sizeof block) return false;
    memcpy(&block, reader.at, sizeof block);
    if (block.party != party || block.bytes < sizeof block || gather->blocks[party]) return false;
    gather->blocks[party] = reader.at;
    if (!wire_take(&reader, NULL, block.bytes)) return false;
  }
  return reader.left == 0;
}

static bool cards_read(struct gather *gather, uint32_t party) {
  struct wire_block block;
  struct wire_card card;
  struct wire_reader reader = {gather->blocks[party], block_bytes(gather->blocks[party])};
  wire_take(&reader, &block, sizeof block);
  gather->addresses[party] = block.address;
  for (uint32_t i = 0; i < block.seat_count; i++) {
    if (!wire_take(&reader, &card, sizeof card) || card.seat >= gather->seat_count) return false;
    struct gather_seat *seat = &gather->seats[card.seat];
    if (seat->card || card.bytes > GATHER_CARD_MOST) return false;
    seat->card = reader.at;
    seat->card_bytes = card.bytes;
    seat->party = party;
    if (!wire_take(&reader, NULL, card.bytes + wire_padding(card.bytes))) return false;
  }
  return reader.left == 0;
}

/* ---- rounds ---- */

/* Locked. */
static void round_send(struct gather *gather, uint32_t round, const struct wire_party *about) {
  const struct wire_hello hello = {gather->roster.party, round};
  const struct wire_exchange head = {round, round_blocks(gather, round)};
  struct control_conn *conn = gather->to[round].conn;
  struct wire_writer writer = {NULL, 0, 0, false};
  for (uint32_t i = 0; i < head.block_count; i++) {
    const uint8_t *block = gather->blocks[(gather->roster.party + i) % gather->roster.party_count];
    wire_put(&writer, block, block_bytes(block));
  }
  if (writer.failed) {
    gather_fail(gather, ncclSystemError, "no memory to pass cards on");
    return;
  }
  control_send(conn, FRAME_HELLO, &hello, sizeof hello, about, sizeof *about);
  control_send(conn, FRAME_EXCHANGE, &head, sizeof head, writer.bytes, writer.used);
  gather->cost.sent_bytes +=
      2 * sizeof(struct frame_head) + sizeof hello + sizeof *about + sizeof head + writer.used;
  wire_free(&writer);
}

static void round_dial(struct gather *gather, uint32_t round, const struct wire_party *about) {
  struct gather_link *link = &gather->to[round];
  int fd = -1;
  const ncclResult_t result =
      gather_dial(gather, &link->peer.address, GREET_LINK, link->peer.uid, "meeting another process at", &fd);
  control_lock();
  if (result != ncclSuccess) {
    gather_suspect(gather, &link->peer, "cannot be reached from another process of the communicator");
  } else if (gather->code != ncclSuccess) {
    sock_close(fd);
  } else if (!(link->conn = control_adopt(fd, &link_class, gather))) {
    gather_fail(gather, ncclSystemError, "no memory for a connection to another process");
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
    gather_fail(gather, ncclRemoteError, "%s did not send its cards in time",
                wire_party_text(&link->peer, who, sizeof who));
  } else {
    gather_fail(gather, ncclRemoteError, "process %u of %u did not send its cards in time",
                (gather->roster.party + (1u << round)) % gather->roster.party_count,
                gather->roster.party_count);
  }
}

/* Locked: until this round's blocks are here. */
static ncclResult_t round_receive(struct gather *gather, uint32_t round) {
  char who[256];
  while (gather->code == ncclSuccess && !gather->raw[round]) {
    if (!gather_await(gather)) deadline_pass(gather, round);
  }
  if (gather->code != ncclSuccess) return gather->code;
  struct gather_link *from = &gather->from[round];
  if (!blocks_read(gather, round)) {
    gather_fail(gather, ncclInternalError,
                "%s sent cards that cannot be read; load the same library everywhere",
                wire_party_text(&from->peer, who, sizeof who));
    return gather->code;
  }
  if (gather_keeps(gather, round)) return ncclSuccess;
  control_end(from->conn);
  from->conn = NULL;
  return ncclSuccess;
}

static ncclResult_t exchange_finish(struct gather *gather) {
  bool good = true;
  for (uint32_t i = 0; good && i < gather->roster.party_count; i++) good = cards_read(gather, i);
  for (uint32_t i = 0; good && i < gather->seat_count; i++) good = gather->seats[i].card != NULL;
  if (!good)
    gather_fail(gather, ncclInternalError,
                "the cards of the ranks do not fit together; load the same library "
                "everywhere");
  else gather->exchanged = true;
  return gather->code;
}

ncclResult_t gather_exchange(struct gather *gather) {
  struct wire_party about;
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
  result = exchange_finish(gather);
  control_unlock();
  return result;
}
