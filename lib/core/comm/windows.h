/* windows.h: the windows of a communicator's ranks in this process: what one rank registers, the others put
 * into. All ranks register in the same order, so the n-th window of a rank is the same window as the n-th of
 * every other. */
#ifndef TUTTI_CORE_WINDOWS_H
#define TUTTI_CORE_WINDOWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ncclComm;
struct registration;
struct lsa_view;

/* What ncclWindow_t points to, or stands for: then it points to the view. */
struct window {
  struct window *next;
  struct ncclComm *comm;
  uint32_t number; /* from 1 */
  void *begin;
  size_t bytes;
  bool symmetric;                    /* collectives may use it so */
  struct registration *registration; /* NULL: memory of the host, which no rank puts into */
  struct lsa_view *view;             /* for kernels of programs; NULL: none */
  void **lsa;                        /* with a view: where the window of each rank of the team lies */
  bool filled;                       /* ... all of which are known */
  struct window *next_view;          /* of the process's windows with views */
};

/* A rank's; all under the backend's lock. */
struct window_list {
  struct window *first;
  uint32_t count; /* registered so far */
  bool left;      /* the rank is destroyed, and has none any more */
};

enum window_find { WINDOW_FOUND, WINDOW_LATER, WINDOW_GONE, WINDOW_LEFT };
/* Locked. *window: a copy. */
enum window_find windows_find(const struct window_list *list, uint32_t number, struct window *window);
/* So many bytes, from this offset on, are all in it. */
bool window_has(const struct window *window, uint64_t offset, size_t bytes);
/* The number of the rank's symmetric window of device memory that has all these bytes, and where in it they
 * begin; 0: none has. */
uint32_t windows_hold(struct ncclComm *comm, const void *begin, size_t bytes, uint64_t *offset);
/* The rank has taken its memory back from other processes, and shows its windows as when they were made. */
void windows_show(struct ncclComm *comm);
/* The communicator is destroyed. */
void windows_leave(struct ncclComm *comm);

#endif
