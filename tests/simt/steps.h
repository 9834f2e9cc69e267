/* steps.h (simt): SIMT_STEPS=FILE: compares what a kernel's block does with the steps of its works
 * (lib/schedule):
 *
 * - posts: each store of head or tail has the value that the schedule has next, when all that it announces
 *   was written, or read, and nothing else;
 * - slots: each is written when it is free, only where the step has data, each byte or line once, and read
 *   when it was posted, or by its flag;
 * - users' memory, the own and that of peers: each byte is written as often as the steps write it; each one
 *   that they read is read, and no other;
 * - ends of connections: only the words that belong to the end's role are written; the size is announced
 *   once; what is saved is where the next operation begins;
 * - warps: each work has those that kernels/warps.h gives it, unless works run one after another.
 *
 * The first difference ends the program with a sentence. A process that ends appends to FILE how many works
 * were compared. What the emulator's executors do (lib/protocol) is not used: only the steps are common. */
#ifndef TUTTI_TESTS_SIMT_STEPS_H
#define TUTTI_TESTS_SIMT_STEPS_H

#include "watch.h"

extern const struct watcher steps_watcher;

#endif
