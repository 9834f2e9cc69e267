// cpu_peers_gloo.cc: cpu_peers.c's twin over Gloo's TCP transport on loopback. It makes a process a rank itself:
// --ranks; --algorithm ring, bcube, hd (halving and doubling) or chunked says how Gloo reduces to all, and the
// latter two are classes that know that operation alone. Links to Debian's libgloo; for measuring only.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "cpu_peers.h"

namespace {

struct gloo_rank {
  std::shared_ptr<gloo::rendezvous::Context> context;
  std::string algorithm;
  std::unique_ptr<gloo::Algorithm> made;  // for `count` elements in place
  size_t count = 0;
};

bool is_class(const std::string &algorithm) { return algorithm == "hd" || algorithm == "chunked"; }

void add_up(void *out, const void *a, const void *b, size_t count) { gloo::sum<float>(out, a, b, count); }
void take_most(void *out, const void *a, const void *b, size_t count) {
  gloo::max<double>(out, a, b, count);
}

void all_reduce(gloo_rank *rank, float *in, float *out, size_t count) {
  gloo::AllreduceOptions options(rank->context);
  if (in != out) options.setInput(in, count);
  options.setOutput(out, count);
  options.setAlgorithm(rank->algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                  : gloo::AllreduceOptions::Algorithm::RING);
  options.setReduceFunction(add_up);
  gloo::allreduce(options);
}

void all_reduce_class(gloo_rank *rank, float *out, size_t count) {
  if (!rank->made || rank->count != count) {
    rank->made.reset();
    if (rank->algorithm == "hd")
      rank->made.reset(new gloo::AllreduceHalvingDoubling<float>(rank->context, {out}, (int)count));
    else rank->made.reset(new gloo::AllreduceRingChunked<float>(rank->context, {out}, (int)count));
    rank->count = count;
  }
  rank->made->run();
}

void send_recv(gloo_rank *rank, const peers *p, size_t count) {
  const int n = p->rank_count;
  auto from = rank->context->createUnboundBuffer(p->send, count * sizeof(float));
  auto to = rank->context->createUnboundBuffer(p->recv, count * sizeof(float));
  to->recv((p->rank + n - 1) % n, 1);
  from->send((p->rank + 1) % n, 1);
  to->waitRecv();
  from->waitSend();
}

void run_once(peers *p, peers_op op, size_t count) {
  gloo_rank *rank = (gloo_rank *)p->context;
  const size_t all = count * (size_t)p->rank_count;
  if (is_class(rank->algorithm)) {
    all_reduce_class(rank, p->recv, count);
  } else if (op == PEERS_ALL_REDUCE) {
    all_reduce(rank, p->send, p->recv, count);
  } else if (op == PEERS_ALL_REDUCE_IN_PLACE) {
    all_reduce(rank, p->recv, p->recv, count);
  } else if (op == PEERS_ALL_GATHER) {
    gloo::AllgatherOptions options(rank->context);
    options.setInput(p->send, count);
    options.setOutput(p->recv, all);
    gloo::allgather(options);
  } else if (op == PEERS_BROADCAST) {
    gloo::BroadcastOptions options(rank->context);
    options.setOutput(p->recv, count);
    options.setRoot(0);
    gloo::broadcast(options);
  } else if (op == PEERS_ALL_TO_ALL) {
    gloo::AlltoallOptions options(rank->context);
    options.setInput(p->send, all);
    options.setOutput(p->recv, all);
    gloo::alltoall(options);
  } else {
    send_recv(rank, p, count);
  }
}

void run(peers *p, peers_op op, size_t count, int calls) {
  for (int i = 0; i < calls; i++) run_once(p, op, count);
}

double most(peers *p, double value) {
  gloo::AllreduceOptions options(((gloo_rank *)p->context)->context);
  options.setOutput(&value, 1);
  options.setReduceFunction(take_most);
  gloo::allreduce(options);
  return value;
}

void pin(const peers *p) {
  cpu_set_t set;
  if (p->rank_count > sysconf(_SC_NPROCESSORS_ONLN)) return;
  CPU_ZERO(&set);
  CPU_SET(p->rank, &set);
  sched_setaffinity(0, sizeof set, &set);
}

// What there is a function for, and is like the other programs': its reduce-scatter works in place alone.
const char *ops_of(const std::string &algorithm) {
  return is_class(algorithm) ? "all_reduce_in_place"
                             : "all_reduce,all_reduce_in_place,all_gather,broadcast,alltoall,sendrecv";
}

void run_rank(peers *p, gloo_rank *rank, peers_range range, const char *directory) {
  gloo::transport::tcp::attr where;
  where.hostname = "127.0.0.1";
  gloo::rendezvous::FileStore store(directory);
  rank->context = std::make_shared<gloo::rendezvous::Context>(p->rank, p->rank_count);
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(where);
  rank->context->connectFullMesh(store, device);
  const char *asked = range.only, *able = ops_of(rank->algorithm);
  for (int op = 0; op < PEERS_OP_COUNT; op++) {
    range.only = peers_op_names[op];
    if (peers_wants(able, range.only) && peers_wants(asked, range.only)) peers_run_all(p, &range);
  }
  rank->made.reset();
}

}  // namespace

int main(int argc, char **argv) {
  char directory[] = "/tmp/cpu_peers_gloo_XXXXXX";
  const peers_range range = peers_range_read(argc, argv);
  gloo_rank rank;
  peers p = {};
  rank.algorithm = peers_option(argc, argv, "--algorithm", "ring");
  p.name = peers_option(argc, argv, "--name", "gloo");
  p.rank_count = atoi(peers_option(argc, argv, "--ranks", "2"));
  p.context = &rank;
  p.run = run;
  p.most = most;
  if (p.rank_count < 2 || p.rank_count > 64 || mkdtemp(directory) == nullptr) return 2;
  for (int i = 1; i < p.rank_count && p.rank == 0; i++)
    if (fork() == 0) p.rank = i;
  pin(&p);
  p.send = (float *)aligned_alloc(4096, (range.last_bytes + 8191) / 4096 * 4096);
  p.recv = (float *)aligned_alloc(4096, (range.last_bytes + 8191) / 4096 * 4096);
  if (p.send == nullptr || p.recv == nullptr) return 1;
  run_rank(&p, &rank, range, directory);
  fflush(stdout);
  if (p.rank != 0) _exit(0);
  int wrong = 0, status = 0;
  while (wait(&status) > 0) wrong |= status != 0;
  if (system((std::string("rm -rf ") + directory).c_str()) != 0) wrong = 1;
  return wrong;
}
