/* bugs.h: what a case of the suite is made of. A case is a function that every rank runs, written as a user
 * would write it; `bug` is true in the wrong program and false in its correct twin. Each case registers
 * itself with its class, which a file defines as CLASS before it includes this header. */
#ifndef TUTTI_TESTS_BUGS_H
#define TUTTI_TESTS_BUGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <nccl.h>

enum {
  N = 256,         /* elements of a small message */
  SIZE = 16 * N,   /* elements that `in` and `out` have */
  LARGE = 4 << 20, /* elements of a message that no connection can hold before it is received */
  RANKS = 4,       /* most of a case */
  OBJECTS = 32     /* most that a rank makes through the functions below */
};

/* One rank, or with CASE_ALL the thread that drives all of them. */
struct job {
  int rank, size;
  ncclUniqueId id;
  /* Indexed by rank with CASE_ALL; otherwise only [0] is used. */
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS];
  float *ins[RANKS], *outs[RANKS];
  /* Destroyed at the end. */
  ncclComm_t made_comms[OBJECTS];
  cudaStream_t made_streams[OBJECTS];
  cudaEvent_t made_events[OBJECTS];
  void *made_memory[OBJECTS];
  int comm_count, stream_count, event_count, memory_count;
};

typedef void bug_run(struct job *job, bool bug, int rank, int size, ncclComm_t comm, cudaStream_t stream,
                     float *in, float *out);

/* Who runs a case. */
enum bug_kind {
  BUG_RANKS, /* a thread, or a process, for each rank; `comm` is ready */
  BUG_BARE,  /* the same, without communicators: the case makes them from job->id */
  BUG_ALL    /* one thread drives all ranks, whose communicators are in job->comms */
};

struct bug_case {
  const char *name, *class_name, *file;
  bug_run *run;
  enum bug_kind kind;
  int ranks;
  const char *says[4]; /* what the error must contain: regular expressions */
  bool seeds;          /* only some orders fail: found within 200 seeds */
  bool processes;      /* runs also with a process for each rank */
  bool emulated;       /* guarded mode alone can see it: it orders what cores do at the same time */
  const char *missed;  /* why it is known to be missed; NULL: it is not */
};

void bug_register(const struct bug_case *bug_case);

#define CASE_OF(kind_, name_, ranks_, ...)                                                               \
  static bug_run name_;                                                                                  \
  static const struct bug_case name_##_case = {.name = #name_,                                           \
                                               .class_name = CLASS,                                      \
                                               .file = __FILE__,                                         \
                                               .run = name_,                                             \
                                               .kind = kind_,                                            \
                                               .ranks = ranks_,                                          \
                                               __VA_ARGS__};                                             \
  __attribute__((constructor)) static void name_##_register(void) { bug_register(&name_##_case); }       \
  static void name_(struct job *job, bool bug, int rank, int size, ncclComm_t comm, cudaStream_t stream, \
                    float *in, float *out)
/* CASE(name, ranks, .says = {...}, ...) { the program } */
#define CASE(name, ranks, ...) CASE_OF(BUG_RANKS, name, ranks, __VA_ARGS__)
#define CASE_BARE(name, ranks, ...) CASE_OF(BUG_BARE, name, ranks, __VA_ARGS__)
#define CASE_ALL(name, ranks, ...) CASE_OF(BUG_ALL, name, ranks, __VA_ARGS__)

/* As programs check their calls: print, and end the process. */
void bug_cuda(cudaError_t error, const char *file, int line, const char *call);
void bug_nccl(ncclResult_t result, const char *file, int line, const char *call);
#define CUDA(call) bug_cuda(call, __FILE__, __LINE__, #call)
#define NCCL(call) bug_nccl(call, __FILE__, __LINE__, #call)

/* On the rank's device; destroyed after the case, when the device is idle. */
cudaStream_t new_stream(struct job *job); /* not ordered with the default stream */
cudaEvent_t new_event(struct job *job);
void *new_memory(struct job *job, size_t bytes);
float *new_floats(struct job *job, size_t count);
/* The ranks of one color, in their order. */
ncclComm_t new_split(struct job *job, ncclComm_t comm, int color);
ncclComm_t new_copy(struct job *job, ncclComm_t comm); /* of the same ranks */
/* Destroyed at the end. */
ncclComm_t keep_comm(struct job *job, ncclComm_t comm);

/* `later` continues behind what `earlier` holds now. */
void order(struct job *job, cudaStream_t earlier, cudaStream_t later);

/* A macro, so that errors name the line of the case. */
#define sum(in, out, count, comm, stream) \
  NCCL(ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, stream))

#endif
