/* ring.pml: the ring all-reduce of three ranks over connections as proved by fifo.pml, two slots each: 2n-1
 * steps a loop (lib/schedule/ring.h), each a fused receive and send that waits for data and for a free slot
 * before it moves anything, and then posts head and tail. A slot holds a chunk's number and the set of ranks
 * whose contributions it has.
 *
 * Proved for all interleavings: every result has each rank's contribution once; every rank terminates. BUG,
 * in the checker's environment, removes one rule; the check must then fail:
 *   1  a contribution is lost                       2  a step that sends frees no slot
 *   3  head moves before the slot is read          4  one slot: every rank waits for the next one to read */
#define SLOTS 2
#define LOOPS 2
#define RANKS 3
#define STEPS (2 * RANKS - 1)
#define ALL ((1 << RANKS) - 1)

/* Connection r goes from rank r to the next one. */
byte head[RANKS], tail[RANKS];
byte chunk[RANKS * SLOTS], shares[RANKS * SLOTS];
byte ended, bug, slots = SLOTS;

#define RECEIVES (i > 0)
#define SENDS (i < STEPS - 1)
#define SLOT_IN (before * SLOTS + received % slots)
#define SLOT_OUT (me * SLOTS + sent % slots)

proctype rank(byte me) {
  byte before = (me + RANKS - 1) % RANKS, loop, i, received, sent, wanted, held;
  for (loop : 1 .. LOOPS) {
    for (i : 0 .. STEPS - 1) {
      wanted = (me + 2 * RANKS - 1 - i) % RANKS;
      held = 0;
      (!RECEIVES || tail[before] > received) && (!SENDS || head[me] + slots > sent);
      if :: bug == 3 && RECEIVES -> head[before] = received + 1 :: else fi;
      if
      :: RECEIVES ->
         atomic { assert(chunk[SLOT_IN] == wanted); held = shares[SLOT_IN]; received++ }
      :: else
      fi;
      if
      :: i < RANKS - (bug == 1) -> assert((held & (1 << me)) == 0); held = held | (1 << me)
      :: else
      fi;
      if :: i >= RANKS - 1 -> assert(held == ALL) :: else fi;
      if :: SENDS -> atomic { chunk[SLOT_OUT] = wanted; shares[SLOT_OUT] = held; sent++ } :: else fi;
      if :: RECEIVES && (bug != 2 || !SENDS) -> head[before] = received :: else fi;
      if :: SENDS -> tail[me] = sent :: else fi
    }
  }
  ended++
}

init {
  byte i;
  c_code { if (getenv("BUG")) now.bug = atoi(getenv("BUG")); };
  if :: bug == 4 -> slots = 1 :: else fi;
  atomic { for (i : 0 .. RANKS - 1) { run rank(i) } }
  ended == RANKS
}
