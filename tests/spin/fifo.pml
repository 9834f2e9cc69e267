/* fifo.pml: a connection as lib/protocol/fifo.h and simple.h have it: one sender, one receiver, 1 to 3 slots,
 * the counters head and tail, up to DEPTH slices between begin and post at either end. A store to a slot
 * is in flight until `memory` delivers it, in any order; tail's release waits for the slice's own store. A
 * slice is one step, and its value is its number plus one.
 *
 * Proved for all interleavings: every value arrives once and in order, no store hits a slot that is not read
 * yet, both ends terminate. BUG, in the checker's environment, removes one rule; the check must then fail:
 *   1  the sender does not look at head            2  it counts a slot that is not there
 *   3  the receiver does not look at tail          4  tail does not wait for the data
 *   5  a slice is announced before it is finished  6  head moves before the slot is read
 *   7  the receiver never frees a slot */
#define STEPS 6
#define DEPTH 2
#define SLOTS_MAX 3

byte slots, bug;
byte head, tail;
byte data[SLOTS_MAX];   /* visible to the receiver; 0: nothing yet */
byte coming[SLOTS_MAX]; /* a store in flight; 0: none */
bool unread[SLOTS_MAX]; /* for the check alone: stored and not yet read */
byte ended;

proctype sender() {
  byte begun, finished, posted, seen;
  do
  :: begun < STEPS && begun - posted < DEPTH && (bug == 1 || seen + slots + (bug == 2) > begun) -> begun++
  /* Loads the other end's counter only if its last value is not enough. */
  :: begun < STEPS && seen + slots <= begun && head != seen -> seen = head
  :: finished < begun ->
     atomic {
       assert(!unread[finished % slots] && coming[finished % slots] == 0);
       unread[finished % slots] = true;
       coming[finished % slots] = finished + 1;
       finished++
     }
  :: posted < (bug == 5 -> begun : finished) && (bug == 4 || coming[posted % slots] == 0) ->
     posted++;
     tail = posted
  :: posted == STEPS && finished == STEPS -> break
  od;
  ended++
}

proctype receiver() {
  byte begun, finished, posted, seen;
  do
  :: begun < STEPS && begun - posted < DEPTH && (bug == 3 || seen > begun) -> begun++
  :: begun < STEPS && seen <= begun && tail != seen -> seen = tail
  :: finished < begun ->
     atomic {
       assert(data[finished % slots] == finished + 1);
       unread[finished % slots] = false;
       finished++
     }
  :: posted < (bug == 6 -> begun : finished) ->
     posted++;
     if
     :: bug != 7 -> head = posted
     :: else
     fi
  :: posted == STEPS && finished == STEPS -> break
  od;
  ended++
}

/* Every store in flight arrives eventually. */
inline arrive(i) { atomic { coming[i] != 0 -> data[i] = coming[i]; coming[i] = 0 } }

proctype memory() {
end:
  do
  :: arrive(0)
  :: arrive(1)
  :: arrive(2)
  od
}

init {
  c_code { if (getenv("BUG")) now.bug = atoi(getenv("BUG")); };
  atomic {
    select (slots : 1 .. SLOTS_MAX);
    run sender();
    run receiver();
    run memory()
  }
  ended == 2;
  assert(head == STEPS && tail == STEPS)
}
