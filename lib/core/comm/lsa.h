/* lsa.h: the ranks whose memory a rank's kernels load from and store to (LSA, "load/store accessible"), and
 * what a communicator has for kernels of programs: views of symmetric windows, and device communicators. */
#ifndef TUTTI_CORE_LSA_H
#define TUTTI_CORE_LSA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "core/comm/windows.h"

struct ncclComm;
struct collective_call;

/* Consecutive ranks of the communicator. */
struct lsa_team {
  uint32_t first, size;
};

/* A window's view: what kernels read of it (struct ncclWindow_vidmem), in memory of the device. */
struct lsa_view {
  struct lsa_view *next; /* of those that are spare */
  void *memory;
};

/* Memory of the device that views are in. */
struct lsa_block {
  struct lsa_block *next;
  void *memory;
};

/* The memory of a device communicator. */
struct lsa_resource {
  struct lsa_resource *next;
  void *memory;
  struct window *window;
};

struct lsa {
  struct lsa_view *spare;
  struct lsa_block *blocks;
  struct lsa_resource *resources;
  bool used;    /* a device communicator was made: windows are for kernels when they are registered */
  bool pending; /* the group's end waits for peers' windows */
};

struct lsa_team lsa_team_of(const struct ncclComm *comm);
/* Gives a symmetric window a view, with the rank's own memory alone. Nothing happens on devices that run no
 * kernels of programs. */
ncclResult_t lsa_view_make(struct ncclComm *comm, struct window *window);
/* What it had is for other windows. */
void lsa_view_drop(struct ncclComm *comm, struct window *window);
/* The window's memory of all members, which it waits for. */
ncclResult_t lsa_fill(struct ncclComm *comm, struct window *window, const char *call);
/* A call at whose end, or that of its group, all of the rank's windows are filled; `note`, or NULL: its part
 * before. */
ncclResult_t lsa_run(const struct collective_call *call,
                     ncclResult_t (*note)(const struct collective_call *call, void *argument),
                     void *argument);
/* At a group's end. */
ncclResult_t lsa_settle(struct ncclComm *comm);
/* The communicator ends. */
void lsa_free(struct ncclComm *comm);

#endif
