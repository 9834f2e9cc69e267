/* nccl_device.h: NCCL's device API, for kernels of programs: teams of ranks, windows of memory that kernels
 * of other ranks load from and store to (LSA, "load/store accessible"), and barriers between these ranks'
 * kernels. Host code creates a device communicator (ncclDevCommCreate) and passes it, and windows of
 * NCCL_WIN_COLL_SYMMETRIC, to its kernels by value.
 *
 * The LSA team of a rank has the ranks of its node, if all of them reach each other's memory, the nodes have
 * as many ranks each, and a node's ranks are numbered one after the other; else the rank alone.
 *
 * Device code is compiled by nvcc as C++17, or, with NCCL_DEVICE_CODE defined, by a compiler for which
 * <cuda_runtime.h> and <cuda/atomic> have CUDA's names. ncclGin works where the LSA team has all ranks: its
 * puts are stores, which are complete when the call returns. This release has no multicast (multimem), no
 * ncclGin between nodes and no LL all-to-all (ncclLLA2A): ncclDevCommCreate refuses requirements of them.
 * Layouts are this library's own: programs are compiled with this header, not with NVIDIA's. */
#ifndef NCCL_DEVICE_H_
#define NCCL_DEVICE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl.h"

#if defined(__CUDACC__) || defined(NCCL_DEVICE_CODE)
#define NCCL_DEVICE_HAS_CODE 1
#include <cuda_runtime.h>

#include <cuda/atomic>
#endif

#ifdef __CUDACC__
#define NCCL_HOST_DEVICE_INLINE static inline __host__ __device__
#else
#define NCCL_HOST_DEVICE_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- teams ---- */

/* Ranks at equal distances, of which the calling rank is one: rank i of the team is the communicator's rank
 * (own - rank * stride) + i * stride. */
typedef struct ncclTeam {
  int nRanks; /* of the team */
  int rank;   /* the calling rank's number in it */
  int stride;
} ncclTeam_t;

/* All ranks; those of the LSA team; those with the same number in their LSA teams. A team of no ranks if the
 * communicator is not ready. */
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t pncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t pncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t pncclTeamRail(ncclComm_t comm);
/* The number in the communicator, or in the LSA team, of rank `rank` of a team; -1 if it has none. */
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

/* Rank bPeer of team b, counted from the calling rank, in steps of team a; it may be no rank of a. */
NCCL_HOST_DEVICE_INLINE int ncclTeamRankToTeam(ncclTeam_t a, ncclTeam_t b, int bPeer) {
  return a.rank + (bPeer - b.rank) * b.stride / a.stride;
}

/* Whether rank bPeer of team b is a rank of team a, too. */
NCCL_HOST_DEVICE_INLINE bool ncclTeamRankIsMember(ncclTeam_t a, ncclTeam_t b, int bPeer) {
  const int distance = (bPeer - b.rank) * b.stride, member = a.rank + distance / a.stride;
  return distance % a.stride == 0 && member >= 0 && member < a.nRanks;
}

/* A team cut into pieces of innerSize ranks: the calling rank's piece, and the ranks that have its place in
 * their pieces. */
NCCL_HOST_DEVICE_INLINE ncclTeam_t ncclTeamInnerFactor(ncclTeam_t parent, int innerSize) {
  const ncclTeam_t team = {innerSize, parent.rank % innerSize, parent.stride};
  return team;
}
NCCL_HOST_DEVICE_INLINE ncclTeam_t ncclTeamOuterFactor(ncclTeam_t parent, int innerSize) {
  const ncclTeam_t team = {parent.nRanks / innerSize, parent.rank / innerSize, parent.stride * innerSize};
  return team;
}

/* The index-th rank of `parent`, counted in `parent`, that is no rank of `subset`, all of whose ranks are
 * parent's. */
NCCL_HOST_DEVICE_INLINE int ncclTeamRankInDifference(ncclTeam_t parent, ncclTeam_t subset, int index) {
  const int step = subset.stride / parent.stride, first = parent.rank - subset.rank * step;
  const int behind = index - first; /* of those behind subset's first rank */
  if (behind < 0) return index;
  if (behind >= (subset.nRanks - 1) * (step - 1)) return index + subset.nRanks;
  return first + 1 + behind / (step - 1) * step + behind % (step - 1);
}

/* ---- device communicators ---- */

/* A part of the device communicator's own memory, in units of 128 bytes. */
typedef uint32_t ncclDevResourceHandle;
typedef ncclDevResourceHandle ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;

typedef struct ncclMultimemHandle {
  void *mcBasePtr;
} ncclMultimemHandle_t;

typedef struct ncclLsaBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclLsaBarrierHandle_t;

typedef struct ncclGinBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclGinBarrierHandle_t;

/* Memory that each rank shall have in its device communicator; a list. */
typedef struct ncclDevResourceRequirements {
  struct ncclDevResourceRequirements *next;
  size_t bufferSize;                        /* bytes */
  size_t bufferAlign;                       /* bytes, a power of two; 0: 128 */
  ncclDevResourceHandle_t *outBufferHandle; /* NULL, or set by ncclDevCommCreate */
  int ginSignalCount, ginCounterCount;      /* besides those of ncclDevCommRequirements */
  ncclGinSignal_t *outGinSignalStart;
  ncclGinCounter_t *outGinCounterStart;
} ncclDevResourceRequirements_t;

typedef struct ncclTeamRequirements {
  struct ncclTeamRequirements *next;
  ncclTeam_t team;
  bool multimem; /* false in this release */
  ncclMultimemHandle_t *outMultimemHandle;
} ncclTeamRequirements_t;

typedef enum {
  NCCL_GIN_CONNECTION_NONE,
  NCCL_GIN_CONNECTION_FULL,
  NCCL_GIN_CONNECTION_RAIL
} ncclGinConnectionType_t;
typedef enum { NCCL_GIN_TYPE_NONE = 0, NCCL_GIN_TYPE_PROXY = 2, NCCL_GIN_TYPE_GDAKI = 3 } ncclGinType_t;

/* What a device communicator shall have, the same on all ranks. Set by the initializer below. */
typedef struct ncclDevCommRequirements {
  size_t size;
  unsigned int magic, version;
  ncclDevResourceRequirements_t *resourceRequirementsList;
  ncclTeamRequirements_t *teamRequirementsList;
  bool lsaMultimem;    /* false in this release */
  int barrierCount;    /* barriers of all ranks (ncclBarrierSession) */
  int lsaBarrierCount; /* barriers of the LSA team: one for each block that uses one at a time */
  int railGinBarrierCount;
  int lsaLLA2ABlockCount, lsaLLA2ASlotCount; /* 0 in this release */
  bool ginForceEnable;
  int ginContextCount;                 /* a hint: there is one */
  int ginSignalCount, ginCounterCount; /* from number 0 on */
  ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;
  int ginQueueDepth; /* a hint */
  int worldGinBarrierCount;
} ncclDevCommRequirements_t;

#ifndef NCCL_API_MAGIC
#define NCCL_API_MAGIC 0xcafebeefu
#endif
#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER                                                               \
  {                                                                                                          \
    sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, 0, false, 0, 0, 0, 0, 0, false, \
        4, 0, 0, NCCL_GIN_CONNECTION_NONE, false, 0, 0                                                       \
  }

typedef struct ncclCommProperties {
  size_t size;
  unsigned int magic, version;
  int rank, nRanks;
  int cudaDev, nvmlDev;  /* nvmlDev: -1, unknown */
  bool deviceApiSupport; /* ncclDevCommCreate works */
  bool multimemSupport;  /* false */
  ncclGinType_t ginType; /* NCCL_GIN_TYPE_PROXY: ncclGin works; NCCL_GIN_TYPE_NONE: it does not */
  int nLsaTeams;         /* 1: every rank reaches the memory of every other */
  bool hostRmaSupport;   /* ncclPutSignal works between all ranks */
  ncclGinType_t railedGinType;
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER                                                       \
  {                                                                                            \
    sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, 0, 0, 0, false, false, \
        NCCL_GIN_TYPE_NONE, 0, false, NCCL_GIN_TYPE_NONE                                       \
  }

/* Passed to kernels by value. Programs read the first members. */
typedef struct ncclDevComm {
  int rank, nRanks;        /* in the communicator */
  int lsaRank, lsaSize;    /* in the LSA team */
  uint8_t ginContextCount; /* 1, or 0 where ncclGin does not work */
  ncclWindow_t resourceWindow;
  ncclLsaBarrierHandle_t lsaBarrier, allBarrier;    /* allBarrier: of ncclBarrierSession */
  ncclLsaBarrierHandle_t worldBarrier, railBarrier; /* of ncclGinBarrierSession */
  ncclDevResourceHandle_t ginSignals, ginCounters;  /* words of 64 bits; behind the signals their shadows */
  uint32_t ginSignalCount;
} ncclDevComm_t;

/* Sets *props. ncclInvalidArgument if it was not initialized. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);
ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);

/* Called by all ranks with the same requirements, which it waits for: ranks of one thread within a group,
 * whose end waits. Afterwards kernels may use *outDevComm and all windows of NCCL_WIN_COLL_SYMMETRIC that all
 * ranks have registered; those that are registered later, too, for which ncclCommWindowRegister waits then.
 * ncclInvalidUsage, with a sentence, where requirements cannot be met, and in the emulator, which runs no
 * kernels of programs. */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs,
                               ncclDevComm_t *outDevComm);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs,
                                ncclDevComm_t *outDevComm);
/* When the rank's kernels that use it have ended. */
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);
ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);

/* A requirement of nBarriers barriers of a team, all of whose ranks are in the LSA team, in *outReq, to be
 * put into a list; *outHandle is set by ncclDevCommCreate. */
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                             ncclLsaBarrierHandle_t *outHandle,
                                             ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                              ncclLsaBarrierHandle_t *outHandle,
                                              ncclDevResourceRequirements_t *outReq);

/* The same for ncclGinBarrierSession. */
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                             ncclGinBarrierHandle_t *outHandle,
                                             ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                              ncclGinBarrierHandle_t *outHandle,
                                              ncclDevResourceRequirements_t *outReq);

/* Where the memory at this offset of a window lies for the calling rank's device: of rank lsaRank of the LSA
 * team, or of the communicator's rank `peer`, for which NULL means that it is in another LSA team. `window`:
 * of NCCL_WIN_COLL_SYMMETRIC, when ncclDevCommCreate has returned. */
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);
ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);
ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);

/* What kernels read of a window: what ncclWindow_t points to in memory of the device. Not for programs. */
struct ncclWindow_vidmem {
  int32_t lsaRank, lsaSize;
  int32_t lsaFirst; /* rank of the communicator that is rank 0 of the LSA team */
  int32_t worldSize;
  char *lsa[1]; /* by LSA rank: where its window begins; lsaSize entries */
};

/* Bytes of a barrier: a word for each rank that arrives, and the number of the last round. */
NCCL_HOST_DEVICE_INLINE size_t ncclLsaBarrierBytes(int nRanks) {
  return ((size_t)nRanks + 1 + 3) / 4 * 4 * sizeof(uint32_t);
}

/* Bytes from the begin of the resource window. */
NCCL_HOST_DEVICE_INLINE size_t ncclGetResourceBufferOffset(ncclDevResourceHandle_t handle) {
  return (size_t)handle * 128;
}

#ifdef __cplusplus
} /* extern "C" */

struct ncclTeamTagWorld {};
struct ncclTeamTagLsa {};
struct ncclTeamTagRail {};

NCCL_HOST_DEVICE_INLINE ncclTeam ncclTeamWorld(ncclDevComm const &comm) {
  return {comm.nRanks, comm.rank, 1};
}
NCCL_HOST_DEVICE_INLINE ncclTeam ncclTeamLsa(ncclDevComm const &comm) {
  return {comm.lsaSize, comm.lsaRank, 1};
}
NCCL_HOST_DEVICE_INLINE ncclTeam ncclTeamRail(ncclDevComm const &comm) {
  return ncclTeamOuterFactor(ncclTeamWorld(comm), comm.lsaSize);
}
NCCL_HOST_DEVICE_INLINE int ncclTeamRankToWorld(ncclDevComm const &comm, ncclTeam team, int rank) {
  return comm.rank + (rank - team.rank) * team.stride;
}
NCCL_HOST_DEVICE_INLINE int ncclTeamRankToLsa(ncclDevComm const &comm, ncclTeam team, int rank) {
  return comm.lsaRank + (rank - team.rank) * team.stride;
}
#endif

#ifdef NCCL_DEVICE_HAS_CODE
#define NCCL_DEVICE_INLINE static inline __device__
#define NCCL_DEVICE_MEMBER inline __device__

/* ---- memory of windows ---- */

NCCL_DEVICE_INLINE void *ncclGetLsaPointer(ncclWindow_t w, size_t offset, int peer) {
  return w->lsa[peer] + offset;
}
NCCL_DEVICE_INLINE void *ncclGetLocalPointer(ncclWindow_t w, size_t offset) {
  return ncclGetLsaPointer(w, offset, w->lsaRank);
}
/* Of the communicator's rank `peer`, or of a team's; NULL: its memory is out of reach. */
NCCL_DEVICE_INLINE void *ncclGetPeerPointer(ncclWindow_t w, size_t offset, int peer) {
  const unsigned int member = (unsigned int)(peer - w->lsaFirst);
  return member < (unsigned int)w->lsaSize ? ncclGetLsaPointer(w, offset, (int)member) : nullptr;
}
NCCL_DEVICE_INLINE void *ncclGetPeerPointer(ncclWindow_t w, size_t offset, ncclTeam team, int peer) {
  return ncclGetPeerPointer(w, offset, w->lsaFirst + w->lsaRank + (peer - team.rank) * team.stride);
}
NCCL_DEVICE_INLINE void *ncclGetResourceBufferLocalPointer(ncclDevComm const &comm,
                                                           ncclDevResourceHandle handle) {
  return ncclGetLocalPointer(comm.resourceWindow, ncclGetResourceBufferOffset(handle));
}
NCCL_DEVICE_INLINE void *ncclGetResourceBufferLsaPointer(ncclDevComm const &comm,
                                                         ncclDevResourceHandle handle, int peer) {
  return ncclGetLsaPointer(comm.resourceWindow, ncclGetResourceBufferOffset(handle), peer);
}
NCCL_DEVICE_INLINE void *ncclGetResourceBufferPeerPointer(ncclDevComm const &comm,
                                                          ncclDevResourceHandle handle, ncclTeam team,
                                                          int peer) {
  return ncclGetPeerPointer(comm.resourceWindow, ncclGetResourceBufferOffset(handle), team, peer);
}

/* A place in a window, as a pointer that each rank has. */
template <typename T>
struct ncclSymPtr {
  ncclWindow_t window = nullptr;
  size_t offset = 0; /* bytes */

  ncclSymPtr() = default;
  NCCL_DEVICE_MEMBER ncclSymPtr(ncclWindow_t w, size_t at) : window(w), offset(at) {}
  template <typename U>
  NCCL_DEVICE_MEMBER operator ncclSymPtr<U>() const {
    return {window, offset};
  }
  NCCL_DEVICE_MEMBER ncclSymPtr operator+(ptrdiff_t elements) const {
    return {window, offset + (size_t)elements * sizeof(T)};
  }
  NCCL_DEVICE_MEMBER ncclSymPtr operator-(ptrdiff_t elements) const { return *this + -elements; }
  NCCL_DEVICE_MEMBER ncclSymPtr &operator+=(ptrdiff_t elements) { return *this = *this + elements; }
  NCCL_DEVICE_MEMBER ncclSymPtr &operator-=(ptrdiff_t elements) { return *this = *this - elements; }
  NCCL_DEVICE_MEMBER T *localPtr() const { return (T *)ncclGetLocalPointer(window, offset); }
  NCCL_DEVICE_MEMBER T *lsaPtr(int peer) const { return (T *)ncclGetLsaPointer(window, offset, peer); }
  NCCL_DEVICE_MEMBER T *peerPtr(int peer) const { return (T *)ncclGetPeerPointer(window, offset, peer); }
  NCCL_DEVICE_MEMBER T *peerPtr(ncclTeam team, int peer) const {
    return (T *)ncclGetPeerPointer(window, offset, team, peer);
  }
};

NCCL_DEVICE_INLINE ncclSymPtr<char> ncclGetResourceBuffer(ncclDevComm const &comm,
                                                          ncclDevResourceHandle handle) {
  return {comm.resourceWindow, ncclGetResourceBufferOffset(handle)};
}

/* ---- groups of threads: those of a block that call something together ---- */

/* Aligned threads of a warp, a power of two of them. */
template <int THREADS>
struct ncclCoopTile {
  static_assert(THREADS >= 1 && THREADS <= 32 && (THREADS & (THREADS - 1)) == 0, "a power of two, to 32");
  NCCL_DEVICE_MEMBER int thread_rank() const { return (int)(threadIdx.x % THREADS); }
  NCCL_DEVICE_MEMBER int size() const { return THREADS; }
  NCCL_DEVICE_MEMBER int num_threads() const { return THREADS; }
  NCCL_DEVICE_MEMBER void sync() const {
    const unsigned int all = THREADS == 32 ? ~0u : (1u << THREADS % 32) - 1;
    if (THREADS > 1) __syncwarp(all << (threadIdx.x % 32 & ~(THREADS - 1u)));
  }
};
typedef ncclCoopTile<1> ncclCoopThread;
typedef ncclCoopTile<32> ncclCoopWarp;

/* Threads of a warp, by mask. */
struct ncclCoopLanes {
  uint32_t lmask;
  NCCL_DEVICE_MEMBER ncclCoopLanes(uint32_t mask = ~0u) : lmask(mask) {}
  NCCL_DEVICE_MEMBER int thread_rank() const { return __popc(lmask & ((1u << threadIdx.x % 32) - 1)); }
  NCCL_DEVICE_MEMBER int size() const { return __popc(lmask); }
  NCCL_DEVICE_MEMBER int num_threads() const { return __popc(lmask); }
  NCCL_DEVICE_MEMBER void sync() const { __syncwarp(lmask); }
};

/* Warps of a block, one after the other, with a number from 0 to 14 that no other such group has meanwhile.
 */
struct ncclCoopWarpSpan {
  uint32_t warp0 : 8, nWarps : 8, id : 8;
  NCCL_DEVICE_MEMBER ncclCoopWarpSpan(int first, int count, int number)
      : warp0((uint32_t)first), nWarps((uint32_t)count), id((uint32_t)number) {}
  NCCL_DEVICE_MEMBER int thread_rank() const { return (int)(threadIdx.x - 32 * warp0); }
  NCCL_DEVICE_MEMBER int size() const { return (int)(32 * nWarps); }
  NCCL_DEVICE_MEMBER int num_threads() const { return (int)(32 * nWarps); }
  NCCL_DEVICE_MEMBER void sync() const { __barrier_sync_count(1 + id, 32 * nWarps); }
};

/* All threads of the block, which has one dimension. */
struct ncclCoopCta {
  NCCL_DEVICE_MEMBER int thread_rank() const { return (int)threadIdx.x; }
  NCCL_DEVICE_MEMBER int size() const { return (int)blockDim.x; }
  NCCL_DEVICE_MEMBER int num_threads() const { return (int)blockDim.x; }
  NCCL_DEVICE_MEMBER void sync() const { __syncthreads(); }
};

/* ---- barriers of the LSA team ---- */

/* A barrier between groups of threads, one of each rank of a team, whose memory all reach. All threads of the
 * group call each member. A barrier has a number of its own, `index`, below the count that was required;
 * groups that run at once need different ones, as a kernel's blocks do: blockIdx.x. What a rank's threads
 * wrote before an arrival with release order is seen by those that waited with acquire order. */
template <typename Coop>
struct ncclLsaBarrierSession {
  NCCL_DEVICE_MEMBER ncclLsaBarrierSession(Coop group, ncclDevComm const &comm, ncclTeam members,
                                           ncclLsaBarrierHandle barriers, uint32_t index,
                                           bool multimem = false, ncclMultimemHandle = {})
      : coop(group), window(comm.resourceWindow), team(members) {
    (void)multimem;
    place = ncclGetResourceBufferOffset(barriers.bufHandle) + index * ncclLsaBarrierBytes(team.nRanks);
    round = word(team.rank, team.nRanks).load(cuda::memory_order_relaxed);
  }
  NCCL_DEVICE_MEMBER ncclLsaBarrierSession(Coop group, ncclDevComm const &comm, ncclTeamTagLsa,
                                           uint32_t index, bool multimem = false)
      : ncclLsaBarrierSession(group, comm, ncclTeamLsa(comm), comm.lsaBarrier, index, multimem) {}
  ncclLsaBarrierSession(ncclLsaBarrierSession const &) = delete;
  /* Notes the round for the next session, of this kernel or of a later one. */
  NCCL_DEVICE_MEMBER ~ncclLsaBarrierSession() {
    coop.sync();
    if (coop.thread_rank() == 0) word(team.rank, team.nRanks).store(round, cuda::memory_order_relaxed);
    coop.sync();
  }

  /* The group has come this far. */
  NCCL_DEVICE_MEMBER void arrive(Coop, cuda::memory_order order) {
    const bool releases = order != cuda::memory_order_relaxed && order != cuda::memory_order_acquire;
    coop.sync();
    for (int peer = coop.thread_rank(); peer < team.nRanks; peer += coop.size())
      if (peer != team.rank)
        word(peer, team.rank)
            .store(round + 1, releases ? cuda::memory_order_release : cuda::memory_order_relaxed);
  }
  /* Until all have. */
  NCCL_DEVICE_MEMBER void wait(Coop, cuda::memory_order order) {
    const bool acquires = order != cuda::memory_order_relaxed && order != cuda::memory_order_release;
    for (int peer = coop.thread_rank(); peer < team.nRanks; peer += coop.size())
      while (peer != team.rank &&
             (int32_t)(word(team.rank, peer)
                           .load(acquires ? cuda::memory_order_acquire : cuda::memory_order_relaxed) -
                       (round + 1)) < 0) {}
    round += 1;
    coop.sync();
  }
  NCCL_DEVICE_MEMBER void sync(Coop group, cuda::memory_order order) {
    arrive(group, order);
    wait(group, order);
  }

 private:
  Coop coop;
  ncclWindow_t window;
  ncclTeam team;
  size_t place;   /* in the window */
  uint32_t round; /* that the group has left */

  /* At rank `at` of the team: word number `index`. */
  NCCL_DEVICE_MEMBER cuda::atomic_ref<uint32_t, cuda::thread_scope_system> word(int at, int index) const {
    char *barrier = (char *)ncclGetPeerPointer(window, place, team, at);
    return cuda::atomic_ref<uint32_t, cuda::thread_scope_system>(((uint32_t *)barrier)[index]);
  }
};

/* ---- ncclGin: puts, signals and counters ---- */

struct ncclGin_None {};
/* What a put does at the peer when its data is there, or a signal alone: adds to a signal, or to a word of
 * 64 bits in a window. As a put is complete when the call returns, weak ones are as strong ones. */
struct ncclGin_SignalInc {
  ncclGinSignal_t signal;
};
struct ncclGin_SignalAdd {
  ncclGinSignal_t signal;
  uint64_t value;
};
struct ncclGin_VASignalInc {
  ncclWindow_t signalWindow;
  size_t signalOffset;
};
struct ncclGin_VASignalAdd {
  ncclWindow_t signalWindow;
  size_t signalOffset;
  uint64_t value;
};
typedef ncclGin_SignalInc ncclGin_StrongSignalInc, ncclGin_WeakSignalInc;
typedef ncclGin_SignalAdd ncclGin_StrongSignalAdd, ncclGin_WeakSignalAdd;
typedef ncclGin_VASignalInc ncclGin_StrongVASignalInc, ncclGin_WeakVASignalInc;
typedef ncclGin_VASignalAdd ncclGin_StrongVASignalAdd, ncclGin_WeakVASignalAdd;
/* What it does here when its source has been read. */
struct ncclGin_CounterInc {
  ncclGinCounter_t counter;
};
typedef ncclGin_CounterInc ncclGin_WeakCounterInc;

enum ncclGinResourceSharingMode { NCCL_GIN_RESOURCE_SHARING_GPU, NCCL_GIN_RESOURCE_SHARING_CTA };

/* Of a device communicator; contextIndex is 0. Where no group of threads is passed, the calling thread is
 * the group; all threads of a group call with the same arguments. */
struct ncclGin {
  ncclDevComm const &comm;

  NCCL_DEVICE_MEMBER ncclGin(ncclDevComm const &made, int contextIndex,
                             ncclGinResourceSharingMode = NCCL_GIN_RESOURCE_SHARING_GPU)
      : comm(made) {
    (void)contextIndex;
  }

  /* Copies bytes from here to rank `peer` of the team. */
  template <typename Remote = ncclGin_None, typename Local = ncclGin_None, typename Coop = ncclCoopThread>
  NCCL_DEVICE_MEMBER void put(ncclTeam team, int peer, ncclWindow_t dstWnd, size_t dstOffset,
                              ncclWindow_t srcWnd, size_t srcOffset, size_t bytes, Remote remote = {},
                              Local local = {}, Coop coop = {}) const {
    coop.sync();
    copy(coop, (char *)ncclGetPeerPointer(dstWnd, dstOffset, team, peer),
         (const char *)ncclGetLocalPointer(srcWnd, srcOffset), bytes);
    coop.sync();
    if (coop.thread_rank() != 0) return;
    act(remote, team, peer);
    act(local);
  }
  template <typename T, typename Remote = ncclGin_None, typename Local = ncclGin_None,
            typename Coop = ncclCoopThread>
  NCCL_DEVICE_MEMBER void put(ncclTeam team, int peer, ncclSymPtr<T> dst, ncclSymPtr<T> src, size_t count,
                              Remote remote = {}, Local local = {}, Coop coop = {}) const {
    put(team, peer, dst.window, dst.offset, src.window, src.offset, count * sizeof(T), remote, local, coop);
  }
  /* A value of 1, 2, 4 or 8 bytes. */
  template <typename T, typename Remote = ncclGin_None, typename Coop = ncclCoopThread>
  NCCL_DEVICE_MEMBER void putValue(ncclTeam team, int peer, ncclWindow_t dstWnd, size_t dstOffset, T value,
                                   Remote remote = {}, Coop coop = {}) const {
    coop.sync();
    if (coop.thread_rank() != 0) return;
    *(T *)ncclGetPeerPointer(dstWnd, dstOffset, team, peer) = value;
    act(remote, team, peer);
  }
  template <typename T, typename Remote = ncclGin_None, typename Coop = ncclCoopThread>
  NCCL_DEVICE_MEMBER void putValue(ncclTeam team, int peer, ncclSymPtr<T> dst, T value, Remote remote = {},
                                   Coop coop = {}) const {
    putValue(team, peer, dst.window, dst.offset, value, remote, coop);
  }
  /* From there to here. */
  template <typename Coop = ncclCoopThread>
  NCCL_DEVICE_MEMBER void get(ncclTeam team, int peer, ncclWindow_t remoteWnd, size_t remoteOffset,
                              ncclWindow_t localWnd, size_t localOffset, size_t bytes, Coop coop = {}) const {
    copy(coop, (char *)ncclGetLocalPointer(localWnd, localOffset),
         (const char *)ncclGetPeerPointer(remoteWnd, remoteOffset, team, peer), bytes);
    coop.sync();
  }
  template <typename Remote, typename Coop = ncclCoopThread>
  NCCL_DEVICE_MEMBER void signal(ncclTeam team, int peer, Remote remote, Coop coop = {}) const {
    coop.sync();
    if (coop.thread_rank() == 0) act(remote, team, peer);
  }
  /* The group's sources may be written. */
  template <typename Coop>
  NCCL_DEVICE_MEMBER void flush(Coop coop, cuda::memory_order = cuda::memory_order_acquire) const {
    coop.sync();
  }

  /* The lowest `bits` of a signal, or counter; a wait compares modulo 2^bits. */
  NCCL_DEVICE_MEMBER uint64_t readSignal(ncclGinSignal_t signal, int bits = 64,
                                         cuda::memory_order order = cuda::memory_order_acquire) const {
    return word(comm.ginSignals, signal).load(order) & mask(bits);
  }
  NCCL_DEVICE_MEMBER uint64_t readSignal(ncclWindow_t window, size_t offset, int bits = 64,
                                         cuda::memory_order order = cuda::memory_order_acquire) const {
    return ref(ncclGetLocalPointer(window, offset)).load(order) & mask(bits);
  }
  NCCL_DEVICE_MEMBER uint64_t readCounter(ncclGinCounter_t counter, int bits = 56,
                                          cuda::memory_order order = cuda::memory_order_acquire) const {
    return word(comm.ginCounters, counter).load(order) & mask(bits);
  }
  template <typename Coop>
  NCCL_DEVICE_MEMBER void waitSignal(Coop coop, ncclGinSignal_t signal, uint64_t least, int bits = 64,
                                     cuda::memory_order order = cuda::memory_order_acquire) const {
    await(coop, word(comm.ginSignals, signal), least, bits, order);
  }
  template <typename Coop>
  NCCL_DEVICE_MEMBER void waitSignal(Coop coop, ncclWindow_t window, size_t offset, uint64_t least,
                                     int bits = 64,
                                     cuda::memory_order order = cuda::memory_order_acquire) const {
    await(coop, ref(ncclGetLocalPointer(window, offset)), least, bits, order);
  }
  template <typename Coop>
  NCCL_DEVICE_MEMBER void waitCounter(Coop coop, ncclGinCounter_t counter, uint64_t least, int bits = 56,
                                      cuda::memory_order order = cuda::memory_order_acquire) const {
    await(coop, word(comm.ginCounters, counter), least, bits, order);
  }
  /* A word beside each signal that the program may use as it likes. */
  NCCL_DEVICE_MEMBER uint64_t *getSignalShadowPtr(ncclGinSignal_t signal) const {
    return place(comm.ginSignals, comm.ginSignalCount + signal);
  }
  NCCL_DEVICE_MEMBER void increaseSignalShadow(ncclGinSignal_t signal, uint64_t delta) const {
    *getSignalShadowPtr(signal) += delta;
  }
  template <typename Coop>
  NCCL_DEVICE_MEMBER void waitSignalMeetShadow(Coop coop, ncclGinSignal_t signal, int bits = 64,
                                               cuda::memory_order order = cuda::memory_order_acquire) const {
    waitSignal(coop, signal, *getSignalShadowPtr(signal), bits, order);
  }
  /* While nobody adds to them. */
  NCCL_DEVICE_MEMBER void resetSignal(ncclGinSignal_t signal) const {
    word(comm.ginSignals, signal).store(0, cuda::memory_order_relaxed);
    *getSignalShadowPtr(signal) = 0;
  }
  NCCL_DEVICE_MEMBER void resetSignal(ncclWindow_t window, size_t offset) const {
    ref(ncclGetLocalPointer(window, offset)).store(0, cuda::memory_order_relaxed);
  }
  NCCL_DEVICE_MEMBER void resetCounter(ncclGinCounter_t counter) const {
    word(comm.ginCounters, counter).store(0, cuda::memory_order_relaxed);
  }

 private:
  typedef cuda::atomic_ref<uint64_t, cuda::thread_scope_system> Ref;

  static NCCL_DEVICE_MEMBER Ref ref(void *memory) { return Ref(*(uint64_t *)memory); }
  static NCCL_DEVICE_MEMBER uint64_t mask(int bits) { return ~(uint64_t)0 >> (64 - bits); }
  NCCL_DEVICE_MEMBER uint64_t *place(ncclDevResourceHandle words, uint32_t number) const {
    return (uint64_t *)ncclGetResourceBufferLocalPointer(comm, words) + number;
  }
  NCCL_DEVICE_MEMBER Ref word(ncclDevResourceHandle words, uint32_t number) const {
    return ref(place(words, number));
  }

  template <typename Coop>
  static NCCL_DEVICE_MEMBER void await(Coop coop, Ref at, uint64_t least, int bits,
                                       cuda::memory_order order) {
    if (coop.thread_rank() == 0)
      while (((at.load(order) - least) & mask(bits)) > mask(bits) >> 1) {}
    coop.sync();
  }

  template <typename T, typename Coop>
  static NCCL_DEVICE_MEMBER void copy_as(Coop coop, char *to, const char *from, size_t bytes) {
    for (size_t i = (size_t)coop.thread_rank(); i < bytes / sizeof(T); i += (size_t)coop.size())
      ((T *)to)[i] = ((const T *)from)[i];
  }
  template <typename Coop>
  static NCCL_DEVICE_MEMBER void copy(Coop coop, char *to, const char *from, size_t bytes) {
    const uintptr_t ends = (uintptr_t)to | (uintptr_t)from | bytes;
    if (ends % 16 == 0) copy_as<uint4>(coop, to, from, bytes);
    else if (ends % 4 == 0) copy_as<uint32_t>(coop, to, from, bytes);
    else copy_as<char>(coop, to, from, bytes);
  }

  /* Behind what the thread, and those it has met, have written. */
  NCCL_DEVICE_MEMBER void add(ncclTeam team, int peer, ncclWindow_t window, size_t offset,
                              uint64_t value) const {
    ref(ncclGetPeerPointer(window, offset, team, peer)).fetch_add(value, cuda::memory_order_release);
  }
  NCCL_DEVICE_MEMBER size_t offset_of(ncclGinSignal_t signal) const {
    return ncclGetResourceBufferOffset(comm.ginSignals) + signal * sizeof(uint64_t);
  }
  NCCL_DEVICE_MEMBER void act(ncclGin_None, ncclTeam, int) const {}
  NCCL_DEVICE_MEMBER void act(ncclGin_SignalInc it, ncclTeam team, int peer) const {
    add(team, peer, comm.resourceWindow, offset_of(it.signal), 1);
  }
  NCCL_DEVICE_MEMBER void act(ncclGin_SignalAdd it, ncclTeam team, int peer) const {
    add(team, peer, comm.resourceWindow, offset_of(it.signal), it.value);
  }
  NCCL_DEVICE_MEMBER void act(ncclGin_VASignalInc it, ncclTeam team, int peer) const {
    add(team, peer, it.signalWindow, it.signalOffset, 1);
  }
  NCCL_DEVICE_MEMBER void act(ncclGin_VASignalAdd it, ncclTeam team, int peer) const {
    add(team, peer, it.signalWindow, it.signalOffset, it.value);
  }
  NCCL_DEVICE_MEMBER void act(ncclGin_None) const {}
  NCCL_DEVICE_MEMBER void act(ncclGin_CounterInc it) const {
    word(comm.ginCounters, it.counter).fetch_add(1, cuda::memory_order_release);
  }
};

struct ncclGinAllContexts {
  ncclDevComm const &comm;
  NCCL_DEVICE_MEMBER ncclGinAllContexts(ncclDevComm const &made) : comm(made) {}
};

/* What a barrier waits for besides: nothing, as puts and gets are complete when they return. */
enum ncclGinFenceLevel : uint32_t { None = 0, Put = 1, Get = 2, Relaxed = 0 };
NCCL_DEVICE_INLINE ncclGinFenceLevel operator|(ncclGinFenceLevel a, ncclGinFenceLevel b) {
  return (ncclGinFenceLevel)((uint32_t)a | (uint32_t)b);
}

/* Barriers of all ranks, or of the ranks with the same number in their LSA teams. */
template <typename Coop>
struct ncclGinBarrierSession : ncclLsaBarrierSession<Coop> {
  typedef ncclLsaBarrierSession<Coop> Base;
  NCCL_DEVICE_MEMBER ncclGinBarrierSession(Coop coop, ncclGin gin, ncclTeam team,
                                           ncclGinBarrierHandle barriers, uint32_t index)
      : Base(coop, gin.comm, team, ncclLsaBarrierHandle{barriers.bufHandle, barriers.nBarriers}, index) {}
  NCCL_DEVICE_MEMBER ncclGinBarrierSession(Coop coop, ncclGin gin, ncclTeamTagWorld, uint32_t index)
      : Base(coop, gin.comm, ncclTeamWorld(gin.comm), gin.comm.worldBarrier, index) {}
  NCCL_DEVICE_MEMBER ncclGinBarrierSession(Coop coop, ncclGin gin, ncclTeamTagRail, uint32_t index)
      : Base(coop, gin.comm, ncclTeamRail(gin.comm), gin.comm.railBarrier, index) {}
  NCCL_DEVICE_MEMBER ncclGinBarrierSession(Coop coop, ncclGinAllContexts all, ncclTeamTagWorld,
                                           uint32_t index)
      : Base(coop, all.comm, ncclTeamWorld(all.comm), all.comm.worldBarrier, index) {}
  NCCL_DEVICE_MEMBER void sync(Coop coop, cuda::memory_order order,
                               ncclGinFenceLevel = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    Base::sync(coop, order);
  }
};

template <typename Coop>
struct ncclBarrierSession : ncclLsaBarrierSession<Coop> {
  typedef ncclLsaBarrierSession<Coop> Base;
  NCCL_DEVICE_MEMBER ncclBarrierSession(Coop coop, ncclTeamTagWorld, ncclGin gin, uint32_t index,
                                        bool multimem = false)
      : Base(coop, gin.comm, ncclTeamWorld(gin.comm), gin.comm.allBarrier, index, multimem) {}
  NCCL_DEVICE_MEMBER ncclBarrierSession(Coop coop, ncclTeamTagLsa, ncclDevComm const &comm, uint32_t index,
                                        bool multimem = false)
      : Base(coop, comm, ncclTeamLsa(comm), comm.allBarrier, index, multimem) {}
  NCCL_DEVICE_MEMBER void sync(Coop coop, cuda::memory_order order,
                               ncclGinFenceLevel = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    Base::sync(coop, order);
  }
};

#endif /* NCCL_DEVICE_HAS_CODE */
#endif
