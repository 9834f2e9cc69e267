"""The planted bugs. Each is one replacement in one shared header, with the scenario that must catch it.

`find` must occur exactly once in `file` (runs of blanks and line ends count as one blank); `replace` takes
its place. `shows` is the first word of mutant_run's output (invariant, deadlock, mismatch, data), or tsan:
a data race that ThreadSanitizer reports in threads mode. `says` is a text that the output must have, so that
a bug is caught for the right reason. `run` is a scenario: mutant_run's arguments, TUTTI_EMU and
TUTTI_FIRST_STEP."""
from collections import namedtuple

Scenario = namedtuple('Scenario', 'emu seeds ranks calls functions protocols counts type_bytes first')
Mutant = namedtuple('Mutant', 'name file find replace shows says run')


def scenario(emu, functions='all_reduce', protocols='simple', counts='48', ranks=4, calls=4, seeds=40,
             type_bytes='4', first='0'):
    return Scenario(emu, seeds, ranks, calls, functions, protocols, counts, type_bytes, first)


FIFO, LANE = 'lib/protocol/fifo.h', 'lib/protocol/lane.h'
SIMPLE, LL_H, LINE = 'lib/protocol/simple.h', 'lib/protocol/ll.h', 'lib/protocol/line.h'
RING, P2P = 'lib/schedule/ring.h', 'lib/schedule/p2p.h'
PRIM = 'lib/backends/emu/prim_impl.h'

# Two slots, a slice each; no direct stores unless the bug is about them.
SLOTS = scenario('slots=2,chunk=64,channels=1,direct=0')
LATE = scenario('slots=2,chunk=64,channels=1,direct=0,lag=50')
DEEP = scenario('slots=4,chunk=64,channels=1,direct=0,depth=3,lag=50')
CROWDED = scenario('slots=8,chunk=16,channels=1,direct=0,depth=4,lag=80', functions='broadcast', counts='256')
DIRECT = scenario('slots=4,chunk=64,channels=1,direct=1', counts='128')
SHORT = scenario('slots=4,chunk=64,channels=1,direct=0', counts='3,48')
LL = scenario('slots=2,chunk=64,channels=1', protocols='ll')
LL_SPLIT = scenario('slots=2,chunk=64,channels=1,span=1', protocols='ll')
LL128_SPLIT = scenario('slots=2,chunk=960,channels=1,span=1', protocols='ll128', counts='960')
GATHER = scenario('slots=2,chunk=64,channels=1,direct=0', functions='all_gather')
MESSAGE = scenario('slots=2,chunk=64,channels=1,direct=0', functions='send_recv')
# A chain of one step leaves the counter odd; with eight slots a chunk of a ring takes four and rounds up.
ROUNDING = scenario('slots=8,chunk=64,channels=1,direct=0', functions='broadcast,all_reduce', counts='4,256',
                    ranks=2)
# Long messages far apart: the lines between the first and the next keep flags that wrap around.
WRAP = scenario('slots=4,chunk=64,channels=1,span=1,flag_bits=5', functions='all_gather', protocols='ll',
                counts=','.join(['16'] + ['1'] * 31), ranks=2, calls=128)
WRAP128 = scenario('slots=4,chunk=960,channels=1,span=1,flag_bits=5', functions='all_gather',
                   protocols='ll128', counts=','.join(['240'] + ['1'] * 31), ranks=2, calls=128)
# Shortly before the steps 2^31 and 2^32: short calls, which leave most lines of a slot as they were, then
# long ones.
NEAR = scenario('slots=8,chunk=64,channels=1,span=1', functions='all_gather', protocols='ll',
                counts=','.join(['1'] * 24 + ['16'] * 24), ranks=2, calls=48, first='2147483624')
NEAR128 = NEAR._replace(emu='slots=8,chunk=960,channels=1,span=1', protocols='ll128',
                        counts=','.join(['1'] * 24 + ['240'] * 24))
NEAR_32 = scenario('slots=3,chunk=64,channels=1,direct=0', first='4294967280', calls=8)
# Long slices, so that reader and writer overlap, and many of them: a busy machine runs threads one after the
# other.
THREADS = scenario('mode=threads,slots=2,chunk=4096,channels=1,direct=0', counts='20000', ranks=2,
                   calls=20, seeds=30)
THREADS_LL128 = THREADS._replace(protocols='ll128')

ONE_SHOT = scenario('slots=3,chunk=64,channels=1', functions='one_shot')
TWO_SHOT = ONE_SHOT._replace(functions='two_shot')
TWO_SHOT_MIXED = TWO_SHOT._replace(emu='slots=3,chunk=64,channels=1,inputs=2')
SCATTER = ONE_SHOT._replace(functions='direct_scatter')

# What tells the destinations of a step from those of a step with a block for each link.
DESTINATION = ' if (!simple_is_shown(step, link)) simple_add_destination'

MUTANTS = [
    # ---- waiting
    Mutant('sender_ignores_a_full_fifo', FIFO,
           'prim_load_head(&link->sender->head); return link_knows_slots(link, steps);',
           'prim_load_head(&link->sender->head); return true || link_knows_slots(link, steps);',
           'invariant', 'the sender writes a slot that is not free', SLOTS),
    Mutant('ll_sender_ignores_a_full_fifo', LL_H,
           'if (!link_has_slots(&lane->send[i], 1)) return false;', '',
           'invariant', 'the sender writes a slot that is not free', LL),
    Mutant('sender_counts_one_slot_too_many', FIFO,
           'return link->cached + link->slots >= link->step + steps; }',
           'return link->cached + link->slots + 1 >= link->step + steps; }',
           'invariant', 'the sender writes a slot that is not free', SLOTS),
    Mutant('receiver_ignores_an_empty_fifo', FIFO,
           'link->cached = prim_load_tail(&link->receiver->tail); return',
           'link->cached = prim_load_tail(&link->receiver->tail); return true ||',
           'invariant', 'the receiver reads a slot that was not announced', SLOTS),
    Mutant('empty_slice_does_not_wait', SIMPLE,
           'const struct step *step = &lane->step; const uint32_t steps = lane->work->slice_steps;',
           'const struct step *step = &lane->step; const uint32_t steps = lane->work->slice_steps;'
           ' if (step->count == 0) return true;',
           'invariant', 'slot', SHORT),

    # ---- posting
    Mutant('receiver_frees_a_slot_before_it_reads', SIMPLE,
           'simple_add_source(move, simple_slot(lane, &lane->recv[i], step_recv_place(step)));',
           'simple_add_source(move, simple_slot(lane, &lane->recv[i], step_recv_place(step)));'
           ' static const struct prim prim; prim_store_head(&prim, &lane->recv[i].sender->head,'
           ' lane->recv[i].step + lane->work->slice_steps);',
           'invariant', 'the sender writes a slot that is not free', LATE),
    Mutant('ll_receiver_frees_a_slot_at_the_first', LL_H,
           'prim_group_end(prim, kind, lines, bytes, work); lane->line_index += lines; }',
           'prim_group_end(prim, kind, lines, bytes, work); lane->line_index += lines;'
           ' if (work->recv_count > 0 && (step->recv_links & 1) != 0)'
           ' prim_store_head(prim, &lane->recv[0].sender->head, lane->recv[0].step + 1); }',
           'invariant', 'the sender writes a slot that is not free', LL_SPLIT),
    Mutant('tail_announced_at_the_begin_of_the_move', SIMPLE,
           'lane_announce(lane, link, prim);' + DESTINATION,
           'lane_announce(lane, link, prim);'
           ' prim_store_tail(prim, &link->receiver->tail, link->step + lane->work->slice_steps);'
           + DESTINATION,
           'invariant', 'the receiver reads a slot that was not announced', DEEP),
    Mutant('slice_posted_before_it_is_finished', SIMPLE,
           'if (lane->finished > lane->posted) actions |= LANE_POST;',
           'if (lane->begun > lane->posted) actions |= LANE_POST;',
           'invariant', 'tail moves before the data is written', DEEP),
    Mutant('sender_never_announces', SIMPLE,
           'prim_store_tail(prim, &lane->send[i].receiver->tail, lane->send[i].posted);', '',
           'deadlock', 'waits for data from rank', SLOTS),
    # The shared counter is compared at every post, so the bug is found before it deadlocks.
    Mutant('receiver_never_frees_a_slot', SIMPLE,
           'prim_store_head(prim, &lane->recv[i].sender->head, lane->recv[i].posted);', '',
           'invariant', 'head is not the number of steps that were freed', SLOTS),
    Mutant('ll_receiver_never_frees_a_slot', LL_H,
           'prim_store_head(prim, &link->sender->head, link->posted);', '',
           'invariant', 'head is not the number of steps that were freed', LL),
    Mutant('empty_slice_does_not_post', SIMPLE,
           'const struct flight *flight = lane_flight(lane, lane->posted);',
           'const struct flight *flight = lane_flight(lane, lane->posted);'
           ' if (flight->move.count == 0) { lane->posted += 1; return; }',
           'invariant', 'is not the number of steps', SHORT),
    Mutant('sender_forgets_the_size', LANE,
           'prim_tagged_store(prim, link_announcement(link, lane_proto(lane->work)), link_tag(link),'
           ' lane_agreed_bytes(lane_part(lane)));', '(void)prim;',
           'deadlock', 'waits for data from rank', SLOTS._replace(ranks=2)),
    Mutant('ll_begins_on_the_announcement', LL_H, '(short_lines ? FIFO_LL_TAGGED_BYTES : 0) +', '0 +',
           'mismatch', 'where rank', LL._replace(ranks=2)),
    Mutant('sender_announces_another_size', LANE,
           'link_tag(link), lane_agreed_bytes(lane_part(lane))); link->agreed = true;',
           'link_tag(link), lane_agreed_bytes(lane_part(lane)) + 1); link->agreed = true;',
           'mismatch', 'rank 0 has', LL._replace(ranks=2)),
    Mutant('announcement_of_another_operation_is_believed', PRIM,
           'if (!line_half_has(low, tag) || !line_half_has(high, tag)) return false;', '(void)tag;',
           'mismatch', 'has 0 bytes', SLOTS._replace(ranks=2)),

    # ---- moving
    Mutant('slices_share_a_slot', FIFO,
           'link->slot_index += steps;', 'link->slot_index += 0;',
           'data', 'all_reduce', SLOTS),
    Mutant('late_move_is_never_made', SIMPLE,
           'prim_move_finish(prim, &lane_flight(lane, lane->finished)->move);', '(void)prim;',
           'data', 'all_reduce', DEEP),
    Mutant('one_slice_too_many_in_flight', SIMPLE,
           'lane->begun - lane->posted < lane->depth', 'lane->begun - lane->posted <= lane->depth',
           'data', 'broadcast', CROWDED),
    Mutant('slice_reads_and_writes_at_the_chunk', SIMPLE,
           'simple_add_source(move, lane_own(lane, offset));',
           'simple_add_source(move, lane_own(lane, 0 * offset));',
           'data', 'all_reduce', DIRECT),
    Mutant('direct_store_at_the_wrong_offset', SIMPLE,
           'link->direct + lane_bytes(lane, step_link_out(step, index, true) + offset)',
           'link->direct + lane_bytes(lane, step_link_out(step, index, true))',
           'data', 'all_reduce', DIRECT),
    Mutant('partial_sum_stored_directly', SIMPLE,
           'if ((step->flags & STEP_SEND_FINAL) == 0 || link->direct == 0)', 'if (link->direct == 0)',
           'data', 'all_reduce', DIRECT),
    Mutant('line_flag_without_data', PRIM,
           '_mm_unpacklo_epi32(both, flags)', '_mm_unpacklo_epi32(_mm_setzero_si128(), flags)',
           'data', 'protocol 0', LL),
    Mutant('flags_run_ahead_of_ll_lines', LL_H,
           'lane->line_index), lines, line_flag(lane, &lane->send[i]), &data);',
           'lane->line_index), lane->line_count - lane->line_index, line_flag(lane, &lane->send[i]), &data);',
           'data', 'protocol 0', LL_SPLIT),
    Mutant('flags_run_ahead_of_ll128_lines', LL_H,
           'lane->line_index), lines, line_flag(lane, &lane->send[i]), &data);',
           'lane->line_index), lane->line_count - lane->line_index, line_flag(lane, &lane->send[i]), &data);',
           'data', 'protocol 1', LL128_SPLIT),
    Mutant('first_flag_is_that_of_fresh_memory', LINE,
           '{ return (line + 1) & mask; }', '{ return line & mask; }',
           'data', 'protocol 0', LL_SPLIT),
    Mutant('wrapped_ll_flags_are_not_cleaned', LL_H,
           'if (line_cleans(lane, link))', 'if (false)',
           'data', 'protocol 0', WRAP),
    Mutant('wrapped_ll128_flags_are_not_cleaned', LL_H,
           'if (line_cleans(lane, link))', 'if (false)',
           'data', 'protocol 1', WRAP128),
    Mutant('cleaning_skips_slots', LINE,
           'return (line & (half - 1)) >= half - slots;',
           'return (line & (half - 1)) == half - slots + 1;',
           'data', 'protocol 0', WRAP),

    Mutant('ll_flags_are_not_cleaned_before_step_2_31', LL_H,
           'if (line_cleans(lane, link))', 'if (lane->flag_bits < 32 && line_cleans(lane, link))',
           'data', 'protocol 0', NEAR),
    Mutant('ll128_flags_are_not_cleaned_before_step_2_31', LL_H,
           'if (line_cleans(lane, link))', 'if (lane->flag_bits < 32 && line_cleans(lane, link))',
           'data', 'protocol 1', NEAR128),
    Mutant('cleaning_once_a_period', LINE,
           'const uint64_t half = (uint64_t)1 << (flag_bits - 1); return (line',
           'const uint64_t half = (uint64_t)1 << flag_bits; return (line',
           'data', 'protocol 0', NEAR),

    # ---- between operations
    # The first post after the rounding compares the counter, so both are found before a deadlock or overrun.
    Mutant('rounded_head_not_published', LANE,
           'if (link->step != recv[i].step) #endif prim_store_head(prim, &link->sender->head, link->step);',
           'if (false)\n#endif\n prim_store_head(prim, &link->sender->head, link->step);',
           'invariant', 'head is not the number of steps that were freed', ROUNDING),
    Mutant('rounded_head_publishes_a_chunk_too_much', LANE,
           'prim_store_head(prim, &link->sender->head, link->step); }',
           'prim_store_head(prim, &link->sender->head, link->step + work->chunk_steps); }',
           'invariant', 'head is not the number of steps that were freed', ROUNDING),
    Mutant('nobody_rounds', FIFO,
           'link->step = slice_first_step(saved_step, chunk_steps);',
           'link->step = saved_step + 0 * chunk_steps;',
           'invariant', 'a slice runs over the end of the slots', ROUNDING),
    Mutant('sender_does_not_round', LANE,
           'link_open(link, send[i].step, work->chunk_steps);',
           'link_open(link, send[i].step, 1);',
           'invariant', 'a slice runs over the end of the slots', ROUNDING),
    Mutant('steps_are_counted_in_32_bits', FIFO,
           'link->step = slice_first_step(saved_step, chunk_steps);',
           'link->step = (uint32_t)slice_first_step(saved_step, chunk_steps);',
           'invariant', 'skips a step', NEAR_32),
    Mutant('slots_follow_from_32_bits_of_the_step', FIFO,
           'return (high % slots * (UINT32_MAX % slots + 1) + low % slots) % slots;',
           '(void)high; return low % slots;',
           'data', 'all_reduce', NEAR_32),
    Mutant('receive_counter_not_saved', LANE,
           'lane->recv[i].receiver->recv_step = lane->recv[i].posted;', ';',
           'invariant', 'the receiver skips a step', SLOTS),
    Mutant('send_counter_not_saved', LANE,
           'lane->send[i].sender->send_step = lane->send[i].posted;', ';',
           'invariant', 'the sender skips a step', SLOTS),
    Mutant('line_counter_not_saved', LANE,
           'lane->send[i].sender->send_line[kind] = lane->send[i].line;', '(void)kind;',
           'deadlock', 'waits for LL lines from rank', LL),
    Mutant('offer_of_another_operation_is_taken', LANE,
           'return lane_take_load(lane, &address, &bytes) ? LANE_TAKE : 0;',
           'return lane_take_load(lane, &address, &bytes) || true ? LANE_TAKE : 0;',
           'mismatch', 'has 0 bytes', DIRECT),

    # ---- inputs that are read in place
    Mutant('sender_ends_before_its_input_is_read', SIMPLE,
           'lane->begun == lane->posted && lane_input_is_read(lane)', 'lane->begun == lane->posted',
           'invariant', 'the sender ends before the receiver has read its input', ONE_SHOT),
    Mutant('sender_awaits_no_reader_of_its_scattered_input', SIMPLE,
           'lane->begun == lane->posted && lane_input_is_read(lane)', 'lane->begun == lane->posted',
           'invariant', 'the sender ends before the receiver has read its input', SCATTER),
    Mutant('any_algorithm_counts_as_one_that_returns_sums', 'lib/schedule/work.h',
           'return work->algo == ALGO_TWO_SHOT && work->func == FUNC_ALL_REDUCE;', 'return work != 0;',
           'invariant', 'the sender ends before the receiver has read its input', ONE_SHOT),
    Mutant('input_of_another_operation_is_taken', LANE,
           'return lane_take_load(lane, &address, &bytes) ? LANE_TAKE : 0;',
           'return lane_take_load(lane, &address, &bytes) || true ? LANE_TAKE : 0;',
           'mismatch', 'has 0 bytes', ONE_SHOT),
    Mutant('input_is_shown_after_others_are_taken', LANE,
           'const uint32_t shows = lane_shows_input(lane) ? lane->work->send_count : 0;',
           'const uint32_t shows = 0;',
           'deadlock', 'show its input', ONE_SHOT),
    Mutant('input_read_at_the_place_of_the_output', SIMPLE,
           'lane->recv[i].direct + lane_bytes(lane, step->in_offset + offset)',
           'lane->recv[i].direct + lane_bytes(lane, step->out_offset + offset)',
           'data', 'reduce_scatter', SCATTER),
    Mutant('hidden_input_is_not_sent', SIMPLE,
           'return (step->flags & STEP_SEND_SHOWN) != 0 && link->shows;',
           'return (step->flags & STEP_SEND_SHOWN) != 0 && link != 0;',
           'data', 'all_reduce', TWO_SHOT_MIXED),
    Mutant('sender_of_a_hidden_input_ends_before_that_is_known', LANE,
           'if (!link_all_freed(&lane->send[i])) return false;',
           'if (lane->send[i].shows && !link_all_freed(&lane->send[i])) return false;',
           'invariant', 'the sender ends before the receiver has read its input',
           ONE_SHOT._replace(emu='slots=3,chunk=64,channels=1,inputs=2')),
    Mutant('shown_input_is_sought_in_the_slot', SIMPLE,
           'return PRIM_ALGOS > 0 && (step->flags & STEP_RECV_SHOWN) != 0 && link->direct != 0;',
           'return PRIM_ALGOS > 0 && (step->flags & STEP_RECV_SHOWN) != 0 && link == 0;',
           'data', 'all_reduce', TWO_SHOT),

    # ---- schedules
    Mutant('output_one_step_late', RING,
           'uint32_t chunk = work->ring_index + 2 * n - 1 - i;',
           'uint32_t chunk = work->ring_index + 2 * n - 1 - i + (i >= n);',
           'data', 'all_reduce', SLOTS),
    Mutant('own_contribution_missing', RING,
           '(i < n ? (uint32_t)STEP_COPY_IN : 0)', '(i < n - 1 ? (uint32_t)STEP_COPY_IN : 0)',
           'data', 'all_reduce', SLOTS),
    Mutant('contribution_of_the_wrong_block', RING,
           'step->in_offset = block * work->count + work->part_offset + it->done;',
           'step->in_offset = work->part_offset + it->done;',
           'data', 'reduce_scatter', SLOTS._replace(functions='reduce_scatter')),
    Mutant('last_loop_cut_with_full_chunks', RING,
           'const size_t begin = it->done + chunk * it->chunk_count;',
           'const size_t begin = it->done + chunk * work->chunk_count;',
           'data', 'all_reduce', SLOTS),
    Mutant('blocks_counted_against_the_ring', RING,
           'ring_rank_at(work, i == 0 ? 0 : n - i)', 'ring_rank_at(work, i)',
           'data', 'all_gather', GATHER),
    Mutant('root_is_not_the_first_of_the_chain', RING,
           'const bool is_first = ring_rank_at(work, work->rank_count - 1) == work->root;',
           'const bool is_first = work->ring_index == 0;',
           'deadlock', 'waits for a free slot towards rank', SLOTS._replace(functions='reduce')),
    Mutant('message_lands_at_its_begin', P2P,
           'step->in_offset = step->out_offset = work->part_offset + it->done;',
           'step->in_offset = work->part_offset + it->done; step->out_offset = work->part_offset;',
           'data', 'send and receive', MESSAGE),
    Mutant('receiver_skips_an_empty_message', P2P,
           'if (it->ended) return false;',
           'if (it->ended || (work->func == FUNC_RECV && work->part_count == 0)) return false;',
           'mismatch', 'bytes', MESSAGE._replace(counts='0,48')),

    # ---- memory order: visible only with threads
    Mutant('release_store_made_relaxed', PRIM,
           '__atomic_store_n(address, value, __ATOMIC_RELEASE)',
           '__atomic_store_n(address, value, __ATOMIC_RELAXED)',
           'tsan', 'data race', THREADS),
    Mutant('acquire_load_made_relaxed', PRIM,
           '__atomic_load_n(address, __ATOMIC_ACQUIRE)', '__atomic_load_n(address, __ATOMIC_RELAXED)',
           'tsan', 'data race', THREADS),
    Mutant('tail_announced_before_the_data_moves', SIMPLE,
           'lane_announce(lane, link, prim);' + DESTINATION,
           'lane_announce(lane, link, prim);'
           ' prim_store_tail(prim, &link->receiver->tail, link->step + lane->work->slice_steps);'
           + DESTINATION,
           'tsan', 'data race', THREADS),
    Mutant('ll128_flag_stored_before_the_data', PRIM,
           'memcpy(words, fragment->data + (size_t)i * 120, 120); prim_store_release(&words[15], flag);',
           'prim_store_release(&words[15], flag); memcpy(words, fragment->data + (size_t)i * 120, 120);',
           'tsan', 'data race', THREADS_LL128),
]
