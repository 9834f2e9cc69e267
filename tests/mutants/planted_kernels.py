"""Faults planted into the GPU backend: the kernels, the protocols and schedules as kernels use them, and the
host code that binds and launches them.

Each is a replacement in one file: `find` must occur exactly once in it (runs of blanks and line ends count as
one blank), and what is between its two @, or all of it, is replaced. What ends with ; or } is a statement,
anything else an expression. `shows` is what must happen then, or several with | between them: wrong (bits),
hang (the watchdog explains it), error (the program or the simulator names it), race (two accesses that PTX's
memory model does not order: tests/simt/order.h), crash (a store to memory that is not mapped, or the process
ends), steps (the kernel does something else than its schedule: tests/simt/steps.h; without that comparison
the run passes, so the results are right). `says` is a pattern that the message must match. `run` is a
scenario of tests/simt.

One more value of `shows`, `equal`, is for faults that change no result on GPUs either; `says` is the reason
then, and the fault must be reached and do no harm."""
from collections import namedtuple

Scenario = namedtuple('Scenario', 'program arguments env processes hosts')
Fault = namedtuple('Fault', 'name file find replace shows says run')

# Kernels that are compiled with the faults; launches of other kernels have none.
KERNELS = ('ll', 'll128', 'simple', 'll_links', 'links', 'direct_ll', 'direct_once', 'direct_once_lines',
           'direct_simple', 'direct_pair', 'bulk', 'mixed')

# Changes without a fault: spans of two types, which compile in a fifth of the time. Programs use no other.
ALWAYS = [('lib/kernels/compute_warp.h', 'switch (span.dtype) { TYPE_TABLE(SPAN_TYPE) }',
           'switch (span.dtype) { SPAN_TYPE(3, uint32, uint32_t, uint32_t)'
           ' SPAN_TYPE(7, float, float, float) }')]

FAULTS = []

SHORT_BUFFERS = 'NCCL_LL_BUFFSIZE=32768 NCCL_LL128_BUFFSIZE=61440'
DIRECT = ';allgather:Direct;reducescatter:Direct;broadcast:Direct;reduce:Direct'
WRAP_31, WRAP_32 = 'TUTTI_FIRST_STEP=2147483616', 'TUTTI_FIRST_STEP=4294967264'


def scenario(algo, proto, arguments='3 500 1', env='', program='wrap', processes=0, hosts=''):
    if algo in ('Direct', 'TwoShot'):
        algo = 'allreduce:' + algo + DIRECT
    words = [SHORT_BUFFERS, 'NCCL_ALGO=' + algo if algo else '', 'NCCL_PROTO=' + proto if proto else '', env]
    return Scenario(program, arguments, ' '.join(word for word in words if word), processes, hosts)


def slow(run, warp):
    return run._replace(env=run.env + ' SIMT_SLOW_WARP=' + warp)


def seeded(run, seed='1'):
    return run._replace(env=run.env + ' SIMT_SEED=' + seed)


def raced(run):
    """With all accesses of the kernels compared with PTX's memory model."""
    return run._replace(env=run.env + ' SIMT_RACES=1 SIMT_CAPABILITY=90 TUTTI_WATCHDOG_SECONDS=30')


def streams(run):
    """The same, with calls that alternate between two streams; over LL the long ones make several loops."""
    return raced(run._replace(arguments='3 600 0 streams', env=run.env + ' NCCL_LL_BUFFSIZE=4096'))


def stepped(run):
    """With all accesses of the kernels compared with their schedule."""
    return run._replace(env=run.env + ' SIMT_STEPS=/dev/null')


def late(run, first):
    return run._replace(env=run.env + ' ' + first)


RING_LL, RING_LL128, RING_SIMPLE = (scenario('Ring', proto) for proto in ('LL', 'LL128', 'Simple'))
RING_LONG = scenario('Ring', 'Simple', '3 3000 1', 'NCCL_BUFFSIZE=16384')
RING_LL_LONG = scenario('Ring', 'LL', '3 3000 1')
TREE_LL, TREE_SIMPLE = scenario('allreduce:Tree', 'LL'), scenario('allreduce:Tree', 'Simple')
ONE_LL, ONE_SIMPLE = scenario('Direct', 'LL'), scenario('Direct', 'Simple')
TWO_LL, TWO_SIMPLE = scenario('TwoShot', 'LL'), scenario('TwoShot', 'Simple')
ROOT_BROADCAST, ROOT_REDUCE = (
    scenario('', 'Simple', func + ' -g 3 -b 1001 -e 100001 -f 9 -r 1 -d uint32',
             'NCCL_BUFFSIZE=16384 NCCL_ALGO=' + func + ':TwoShot', program='bench')
    for func in ('broadcast', 'reduce'))
RACE_LL, RACE_LL128, RACE_SIMPLE = raced(RING_LL), raced(RING_LL128), raced(RING_SIMPLE)
RACE_TREE, RACE_TREE_LL = raced(TREE_SIMPLE), raced(TREE_LL)
RACE_LOOPS = raced(scenario('TwoShot', 'Simple', '3 3000 1', 'NCCL_BUFFSIZE=16384'))
RACE_ONE_LL, RACE_TWO_LL, RACE_TWO = raced(ONE_LL), raced(TWO_LL), raced(TWO_SIMPLE)
REDUCE_LL = scenario('', 'LL', 'reduce -g 3 -b 1001 -e 100001 -f 9 -r 1 -d float', 'NCCL_ALGO=reduce:Direct',
                     program='bench')
AVERAGE = '-g 3 -b 4000 -e 4000 -o avg'
BENCH_TREE = scenario('allreduce:Tree', 'Simple', 'all_reduce -g 4 -b 400 -e 40K -f 10', program='bench')
BENCH_LL = scenario('Ring', 'LL', 'all_reduce -d float ' + AVERAGE, program='bench')
PROCESSES_RING = scenario('Ring', 'Simple', 'all_gather -b 4M -e 4M -n 3', 'SIMT_CAPABILITY=80',
                          program='bench', processes=2)
PROCESSES_DIRECT = scenario('Direct', 'Simple', 'all_gather -b 4M -e 4M -n 3', program='bench', processes=2)
PROCESSES_WRAP = scenario('Ring', 'LL', '0 500 1', processes=2)
PROCESSES_SHM = scenario('Ring', 'LL', '0 500 1', 'NCCL_P2P_DISABLE=1', processes=2)
READS = 'NCCL_P2P_READ_ENABLE=1'
READ_SIMPLE = scenario('Ring', 'Simple', env=READS)
READ_LONG = scenario('Ring', 'Simple', '3 3000 1', 'NCCL_BUFFSIZE=16384 ' + READS)
READ_TREE = scenario('allreduce:Tree', 'Simple', env=READS)
READ_PROCESSES = scenario('Ring', 'Simple', '0 3000 1', READS, processes=2)
READ_SLOTS = scenario('', '', 'sender', READS + ' TUTTI_EMU=mode=threads,devices=2', program='slots')
MISMATCH = scenario('', '', '', 'TUTTI_EMU=mode=threads,devices=2', program='mismatch')
MISMATCH_BROADCAST = scenario('', '', 'broadcast', 'TUTTI_EMU=mode=threads,devices=3', program='mismatch')
ABORT = scenario('', '', '', 'TUTTI_EMU=mode=threads,devices=2', program='abort')
VMM_REMAP, VMM_USED = (
    scenario('TwoShot', 'Simple', arguments, 'TUTTI_EMU=mode=threads,devices=2', program='vmm')
    for arguments in ('remap 3', 'used 0'))
VMM_THREADS = scenario('TwoShot', 'Simple', 'threads 5',
                       'TUTTI_EMU=mode=threads,devices=2 SIMT_ACCESS=/dev/null', program='vmm')
VMM_ALLOC = scenario('TwoShot', 'Simple', 'alloc', 'TUTTI_EMU=mode=threads,devices=2', program='vmm')
VMM_ALLOC_PLAIN = scenario('TwoShot', 'Simple', 'alloc-used',
                           'TUTTI_EMU=mode=threads,devices=2 NCCL_CUMEM_ENABLE=0', program='vmm')
LEASES_EVICT, LEASES_REPEAT = (
    scenario('TwoShot', 'Simple', arguments, 'TUTTI_EMU=mode=threads,devices=2', program='leases')
    for arguments in ('evict 3', 'repeat 2'))
LIVES, GRAPHS = (scenario('', '', arguments, 'TUTTI_EMU=mode=threads,devices=2', program=program)
                 for program, arguments in (('lives', ''), ('graphs', '2')))
# Each with a count of the devices' memory of its own.
SUSPEND_GRAPHS, SUSPEND_MAPPED, SUSPEND_SHOWN, SUSPEND_KEPT = (
    scenario('', '', '', 'TUTTI_EMU=mode=threads,devices=2 SIMT_MEMORY=@/suspend-%d:8192 '
             'TUTTI_INIT_TIMEOUT_SECONDS=5' % number,
             program='suspend') for number in range(4))
CROWD = scenario('', 'LL', '', 'TUTTI_EMU=mode=threads,devices=2 NCCL_MAX_CTAS=1 SIMT_MULTIPROCESSORS=1',
                 program='crowd')
CLUSTERS = scenario('', 'Simple', 'clusters 8 24',
                    'TUTTI_EMU=mode=threads,devices=2 SIMT_MULTIPROCESSORS=48:8', program='crowd')
AGAIN = scenario('', '', '', 'TUTTI_EMU=mode=threads,devices=2', program='again')

PLANS_LL = scenario('Direct', 'LL', '3 4096 /dev/null all_reduce', program='plans')
PLANS_GATHER = scenario('Direct', 'LL', '3 4096 /dev/null all_gather', program='plans')

BITS = 'instead of'       # wrap.c's and digest.c's message
RACE = 'simt: race'
STUCK = 'no progress'     # the watchdog's
STEPS = 'simt: steps'


def plant(file, name, find, replace, shows, run, says=None):
    usual = {'wrong': BITS, 'hang': STUCK, 'race': RACE, 'steps': STEPS}
    FAULTS.append(Fault(name, 'lib/' + file, find, replace, shows, says or usual.get(shows, ''), run))


# ---- issue, commit and compute warps

PRIM, COMPUTE, BLOCK = 'kernels/prim_impl.h', 'kernels/compute_warp.h', 'kernels/block.h'
WARPS = 'kernels/warps.h'
plant(PRIM, 'descriptor_overwritten', '@prim->issued + 1 - PRIM_DESCRIPTORS@',
      'prim->issued - PRIM_DESCRIPTORS', 'wrong|hang', slow(late(scenario('Ring', 'LL',
      '2 100 0 all_gather', 'NCCL_LL_BUFFSIZE=8192'), WRAP_31), '1'))
plant(PRIM, 'post_before_the_move', '@while (!prim_all_done(prim, descriptors) && !prim_aborted(prim)) {}@',
      '', 'wrong', slow(RING_SIMPLE, '1'))
plant(PRIM, 'last_compute_warp_not_counted', '@prim_lane() < prim->compute_warps@',
      'prim_lane() + 1 < prim->compute_warps', 'wrong', slow(scenario('Ring', 'Simple', '3 9000 1'), '-2'))
plant(PRIM, 'counts_of_the_wrong_warps', 'prim_shared.done[@prim->first_compute_warp + prim_lane()@]',
      'prim->first_compute_warp - 1 + prim_lane()', 'hang', RING_SIMPLE)
plant(PRIM, 'half_of_a_tagged_word', '!line_half_has(pair.x, tag) || @!line_half_has(pair.y, tag)@', 'false',
      'race|wrong|hang|error', RACE_SIMPLE, '.')
plant(PRIM, 'tag_not_compared',
      'if (@!line_half_has(pair.x, tag) || !line_half_has(pair.y, tag)@) return false; *value',
      'false', 'wrong|hang|error', late(RING_SIMPLE, WRAP_32))
plant(PRIM, 'factor_forgotten', '@if (work->op == OP_PRE_MUL_SUM) descriptor->flags |= PRIM_SCALES;@', '',
      'wrong', BENCH_LL, '.')
plant(PRIM, 'sum_forgotten', '@if (PRIM_LINKS == 1) prim_draft(prim)->flags |= PRIM_COMBINES;@', '',
      'wrong', RING_LL)
plant(PRIM, 'division_forgotten',
      '@if (work->op == OP_SUM_POST_DIV && prim_writes(prim)) prim_draft(prim)->flags |= ' 'PRIM_DIVIDES;@',
      '', 'wrong', BENCH_LL._replace(arguments='all_reduce -d uint32 ' + AVERAGE), '.')
plant(PRIM, 'flag_awaited_too_early', '->recv_flag[place] = @flag@;', 'flag - 1', 'wrong|hang', RING_LL)
plant(PRIM, 'flag_without_its_top_bit', '->send_flag[place] = @flag@;', 'flag & 0x7fffffff', 'hang',
      late(RING_LL, WRAP_31))
plant(PRIM, 'group_one_line_too_long', '? @compute_threads * PRIM_WORDS@ :',
      'compute_threads * PRIM_WORDS + 1', 'wrong|hang', scenario('Ring', 'LL', '2 8000 0 all_gather',
      'NCCL_LL_BUFFSIZE=262144'))
plant(PRIM, 'own_operand_at_the_wrong_place', 'descriptor->own_index = @prim->second_count@;',
      'prim->second_count + 1', 'wrong', TREE_LL)
plant(PRIM, 'second_link_overwrites_the_first', 'return @prim->second_count++@;',
      '(prim->second_count++, 0u)', 'wrong|hang|error', scenario('', 'LL', '3 500 0 reduce',
      'TUTTI_SUM_ORDER=rank'))
plant(PRIM, 'aborted_host_flag_not_read',
      'stopped |= @prim_flag(prim->abort_flag) | prim_flag(prim->failed_flag)@;', '0', 'error|hang',
      ABORT._replace(env=ABORT.env + ' NCCL_ALGO=Ring NCCL_PROTO=LL'))

plant(COMPUTE, 'copy_without_its_last_vector',
      '@if (at < count) span_store(span, skip + 16 * at, data[k]);@',
      'if (at + 1 < count) span_store(span, skip + 16 * at, data[k]);', 'wrong', RING_SIMPLE)
plant(COMPUTE, 'sum_without_its_last_vector',
      'const size_t at = i + k * stride; if (@at >= count@) continue; span_store(span,', 'at + 1 >= count',
      'wrong', RING_SIMPLE)
plant(COMPUTE, 'last_source_not_loaded',
      '@if (at < count) source[k] = prim_load_pair(span->second[index] + offset);@',
      'if (at + 1 < count) source[k] = prim_load_pair(span->second[index] + offset);', 'wrong', TREE_SIMPLE)
plant(COMPUTE, 'elements_behind_the_vectors_misplaced', '(i < front ? i : @i - front + back@)',
      'i - front + back - 1', 'wrong', RING_SIMPLE)
plant(COMPUTE, 'front_of_the_wrong_length', '@(16 - place) % 16 >> shift@',
      '(16 - place) % 16 >> shift >> 1', 'error|wrong', scenario('Ring', 'Simple', '2 501 0 all_to_all'))
plant(COMPUTE, 'other_alignment_of_a_source',
      '@alike = alike && (uintptr_t)span->second[k] % 16 == place;@', '', 'error', scenario('Ring',
      'Simple', '2 9001 0 reduce_scatter'), 'misaligned access of 16 bytes')
plant(COMPUTE, 'sum_of_the_second_source_alone', 'if (index == 0) return @source@; sum.x', 'sum',
      'wrong|error', TREE_SIMPLE)
plant(COMPUTE, 'll128_lines_of_128_bytes_of_data', '@line * 120 + piece * 16@', 'line * 128 + piece * 16',
      'wrong', RING_LL128)
plant(COMPUTE, 'll128_flag_holds_data', 'if (k % 2 == 1 && @share->flags@)', 'false', 'wrong',
      slow(RING_LL128, '1'))
plant(COMPUTE, 'll128_line_loaded_once',
      '@if (kind == LINE_LL128) ll_take(kind, share, descriptor, link, wire_bytes, words);@', '',
      'wrong', RACE_LL128)
plant(COMPUTE, 'll128_flag_not_compared', 'flagged &= @!share->flags || pair.y == flag@;', 'true', 'wrong',
      RING_LL128)
plant(COMPUTE, 'half_of_a_line_compared',
      'flagged &= line_half_has(pair.x, flag) && @line_half_has(pair.y, flag)@',
      'true', 'race|wrong', RACE_LL, '.')
plant(COMPUTE, 'line_not_awaited',
      'while (!__all_sync(PRIM_ALL_LANES, @ll_take(kind, share, descriptor, link, ' 'wire_bytes, words)@))',
      '(ll_take(kind, share, descriptor, link, wire_bytes, words), true)', 'wrong', RING_LL)
plant(COMPUTE, 'vote_of_one_lane',
      'while (!@__all_sync(PRIM_ALL_LANES, ll_take(kind, share, descriptor, link, ' 'wire_bytes, words))@)',
      '__any_sync(PRIM_ALL_LANES, ll_take(kind, share, descriptor, link, wire_bytes, words))', 'wrong',
      RING_LL)
plant(COMPUTE, 'store_past_the_end',
      'll_keep(uint8_t kind, const struct line_share *share, uint8_t *to, uint32_t bytes, '
      'const uint64_t *words) { const bool aligned = ((uintptr_t)to & 7) == 0; '
      'PRIM_EACH_WORD(k) { const uint32_t offset = line_word_offset(kind, share, k); if '
      '(aligned && @offset + 8 <= bytes@)', 'offset < bytes', 'wrong', RING_LL)
plant(COMPUTE, 'descriptor_read_before_it_is_written',
      'while (@(int32_t)(prim_peek_together(&queue->issued) - count)@ <= 0)',
      '(int32_t)(prim_peek_together(&queue->issued) - count + 1)', 'wrong|hang|crash|error', RING_SIMPLE)
plant(COMPUTE, 'move_counted_before_it_is_made',
      '@if (!compute_do(compute, &queue->descriptors[count % PRIM_DESCRIPTORS])) return;@',
      'if (prim_lane() == 0) *done = count + 1; if (!compute_do(compute, '
      '&queue->descriptors[count % PRIM_DESCRIPTORS])) return;', 'wrong', seeded(slow(RING_LONG, '1')))
plant(COMPUTE, 'move_counted_by_the_first_lane',
      'return; @prim_converge();@ if (prim_lane() == 0) prim_post(done, count + 1);', '', 'wrong',
      seeded(slow(RING_LONG, '1')))

# ---- the block

plant(BLOCK, 'compute_warps_not_dismissed',
      'else if (@prim->issues && prim->compute_warps > 0@) prim_dismiss(prim);', 'false', 'hang', RING_LL)
plant(BLOCK, 'first_warps_share_missing', 'compute->index = @(rank - 1) * PRIM_WARP + prim_lane()@;',
      'rank * PRIM_WARP + prim_lane()', 'wrong|hang', RING_SIMPLE)
plant(BLOCK, 'one_compute_warp_too_many', 'compute->count = @prim->compute_warps * PRIM_WARP@;',
      '(prim->compute_warps + 1) * PRIM_WARP', 'wrong|hang', scenario('Ring', 'Simple', '3 9000 1'))
plant(BLOCK, 'warp_of_the_wrong_work', 'if (@warp < first + size@)', 'warp <= first + size',
      'wrong|hang|error|crash', RING_SIMPLE)
plant(BLOCK, 'warps_of_the_first_work', 'i++, @sizes >>= 8@)', 'sizes >>= 0', 'wrong|hang', TREE_SIMPLE)
plant(WARPS, 'no_warp_that_moves', '#define WARPS_LEAST_USUAL @3u@', '1u', 'error|hang',
      scenario('', 'Simple', 'messages', 'TUTTI_EMU=mode=threads,devices=2', program='again'))
plant(WARPS, 'side_that_adds_has_half', 'percent = @WARPS_TREE_UP_PERCENT@;', '50', 'steps',
      stepped(BENCH_TREE), 'work 0 of 2 has 10 warps, but must have 11')
plant(WARPS, 'warps_without_a_line', '(@counts[i] < most[i]@ &&', 'true', 'steps', stepped(TREE_LL),
      'work [0-9] of [0-9] has [0-9]* warps, but must have')
plant(BLOCK, 'counts_of_the_previous_batch',
      '@if (threadIdx.x < PRIM_WARPS_MAX) prim_shared.done[threadIdx.x] = 0;@', '', 'wrong|hang',
      RING_SIMPLE)
plant(BLOCK, 'descriptors_of_the_previous_batch',
      '@if (threadIdx.x < PLAN_BATCH_WORKS_MAX) prim_shared.queues[threadIdx.x].issued = 0;@', '',
      'wrong|hang|crash|error', RING_SIMPLE)
plant(BLOCK, 'stop_of_the_previous_block', '@if (threadIdx.x == 0) prim_shared.stopped = 0;@', '',
      'wrong|hang', RING_LL)
plant(BLOCK, 'works_used_before_they_are_read',
      'batch_fetch(arguments, data, &batches[index]); @__syncthreads();@', '', 'wrong|hang|error|crash',
      slow(RING_LL, '0'))
plant(BLOCK, 'previous_kernel_not_awaited', '@if (index == first) launch_await_previous();@', '', 'race',
      RACE_LL)
plant(BLOCK, 'next_kernel_invited_too_early',
      '@if (index + 1 == end && !launch_is_short()) launch_invite_next();@',
      'if (index == first) launch_invite_next();', 'equal', RING_SIMPLE,
      'the next kernel waits for the end of this one all the same; it takes its place on the device earlier')
plant(BLOCK, 'end_not_counted',
      '@atomicAdd((unsigned long long *)(arguments->from_graph ? &counts->graph_ended : '
      '&counts->plain_ended), 1ull);@', '', 'hang', RING_LL)
plant(BLOCK, 'mismatch_told_to_this_rank_alone',
      'error->error = LANE_SIZE_MISMATCH; __threadfence_system(); *(volatile int '
      '*)&arguments->control->failed = 1; @*(volatile int *)arguments->failed = 1;@', '', 'error|hang',
      MISMATCH_BROADCAST._replace(env=MISMATCH_BROADCAST.env + ' NCCL_ALGO=Ring NCCL_PROTO=LL'))
plant(BLOCK, 'mismatch_not_told_to_the_host',
      'error->error = LANE_SIZE_MISMATCH; __threadfence_system(); @*(volatile int '
      '*)&arguments->control->failed = 1;@', '', 'error|hang',
      MISMATCH._replace(env=MISMATCH.env + ' NCCL_ALGO=Ring NCCL_PROTO=LL'))
plant(BLOCK, 'further_link_of_the_other_side',
      'link_bind(&lane->recv[i % PRIM_LINKS], @&next->link@, (uint32_t)next->peer',
      '&(next + work->recv_count - 1)->link', 'wrong|hang|crash', scenario('allreduce:Tree', 'LL',
      '6 500 1'))
plant(BLOCK, 'message_slots_of_the_collectives_length',
      '@lane->recv[0].step_bytes = lane->send[0].step_bytes = '
      'plan_message_step_bytes(&arguments->limits, proto);@', '', 'wrong|hang', scenario('Ring', 'Simple',
      'sendrecv -b 4M -e 4M', program='bench', processes=2, hosts='sockets'), '.')

# ---- connections and lanes, as kernels bind them

FIFO, LANE, SIMPLE = 'protocol/fifo.h', 'protocol/lane.h', 'protocol/simple.h'
LL, LINE = 'protocol/ll.h', 'protocol/line.h'
plant(FIFO, 'one_slot_too_many', 'return link->cached + link->slots >= @link->step + steps@;', 'link->step',
      'wrong|hang', slow(RING_LONG, '-1:1'))
plant(FIFO, 'data_one_step_too_early', '@if (link->cached >= link->step + steps) return true;@',
      'if (link->cached + 1 >= link->step + steps) return true;', 'wrong', slow(RING_LONG, '1:1'))
plant(FIFO, 'tail_not_awaited',
      'link->cached = prim_load_tail(&link->receiver->tail); return @link->cached >= '
      'link->step + steps@;', 'true', 'wrong', RING_SIMPLE)
plant(FIFO, 'slot_after_the_last',
      'if (@link->slot_index >= link->slots@) link->slot_index -= link->slots;',
      'link->slot_index > link->slots', 'wrong|hang|crash|error', RING_LONG)
plant(FIFO, 'tag_is_the_step', 'return @(uint32_t)link->step + 1@;', '(uint32_t)link->step',
      'wrong|hang|error', RING_SIMPLE)
plant(FIFO, 'heads_posted_too_rarely',
      'return @now / FIFO_FREES_TOGETHER != before / FIFO_FREES_TOGETHER@;', 'now / 16 != before / 16',
      'hang', scenario('TwoShot', 'Simple', '3 9000 0 all_reduce', 'NCCL_BUFFSIZE=16384'))
plant(FIFO, 'chunk_not_rounded',
      'link->step = @slice_first_step(saved_step, chunk_steps)@;', 'saved_step',
      'wrong|hang|crash', RING_LONG)
plant(LANE, 'head_not_posted_at_the_beginning', '@prim_store_head(prim, &link->sender->head, link->step);@',
      '', 'hang', scenario('', '', 'all_reduce -g 2 -b 4M -e 8M -f 2', 'TUTTI_TUNE_FILE=@/rules',
      program='bench'))
plant(LANE, 'head_posted_one_step_too_early', 'prim_store_head(prim, &link->sender->head, @link->step@);',
      'link->step + 8', 'wrong|hang', slow(RING_LL_LONG, '1:1'))
plant(LANE, 'receivers_lines_not_saved', '@lane->recv[i].receiver->recv_line[kind] = lane->recv[i].line;@',
      '', 'wrong|hang', RING_LL)
plant(LANE, 'senders_lines_not_saved', '@lane->send[i].sender->send_line[kind] = lane->send[i].line;@', '',
      'wrong|hang', RING_LL128)
plant(LANE, 'lines_saved_for_the_other_protocol',
      'const uint8_t kind = @line_kind_of(lane->work)@; lane->phase = LANE_DONE;',
      '(uint8_t)(1 - line_kind_of(lane->work))', 'wrong|hang', RING_LL)
plant(LANE, 'senders_step_not_saved', '@lane->send[i].sender->send_step = lane->send[i].posted;@', '',
      'wrong|hang|error', RING_SIMPLE)
plant(LANE, 'receivers_step_saved_one_too_low', 'recv_step = @lane->recv[i].posted@;',
      'lane->recv[i].posted - 1', 'wrong|hang|error', RING_SIMPLE)
plant(LANE, 'size_not_compared', 'if (@found_bytes == expected_bytes@) return;', 'true', 'error|hang|wrong',
      MISMATCH._replace(env=MISMATCH.env + ' NCCL_ALGO=Ring NCCL_PROTO=LL'))
plant(LANE, 'size_not_announced', 'if (@link->agreed@) return; prim_tagged_store(', 'true', 'hang',
      RING_SIMPLE)
plant(LANE, 'offer_of_a_hidden_output',
      'return lane->out != 0 && @(lane->work->flags & WORK_OUTPUT_HIDDEN) == 0@;', 'true',
      'wrong|hang|crash|error', PROCESSES_RING, '.')
plant(SIMPLE, 'tail_one_slice_too_early',
      'prim_store_tail(prim, &lane->send[i].receiver->tail, @lane->send[i].posted@);',
      'lane->send[i].posted + steps', 'wrong|hang', RING_LONG)
plant(SIMPLE, 'head_one_slice_too_early',
      'prim_store_head(prim, &lane->recv[i].sender->head, @lane->recv[i].posted@);',
      'lane->recv[i].posted + steps', 'wrong', slow(RING_LONG, '1:1'))
plant(SIMPLE, 'last_slice_too_long',
      'move->count = @slice_length(lane->step.count, offset, lane->slice_elements)@;', 'lane->slice_elements',
      'wrong', RING_SIMPLE)
plant(SIMPLE, 'slots_not_awaited', 'if (@!link_has_slots(&lane->send[i], steps)@) return false;', 'false',
      'wrong|hang', slow(RING_LONG, '1:1'))
plant(SIMPLE, 'head_posted_when_the_move_begins', '@lane->begun += 1;@ lane->slice_index += 1;',
      'if (PRIM_LINKS == 1 && flight->recv_links != 0) prim_store_head(prim, '
      '&lane->recv[0].sender->head, lane->recv[0].step); lane->begun += 1;', 'wrong', slow(READ_LONG, '1:1'))
plant(LINE, 'flag_is_the_step', '@(line + 1) & mask@', 'line & mask', 'wrong|hang', RING_LL)
plant(LINE, 'clean_up_one_step_too_late', 'return @(line & (half - 1)) >= half - slots@;',
      '(line & (half - 1)) > half - slots', 'wrong', slow(late(scenario('Ring', 'LL', '3 500 0 all_gather'),
      WRAP_32), '1:1'))
plant(LINE, 'clean_up_of_seven_slots', 'return @(line & (half - 1)) >= half - slots@;',
      '(line & (half - 1)) >= half - slots && (line & (half - 1)) != half - 1', 'wrong',
      slow(late(scenario('Ring', 'LL128', '2 900 0 all_gather'), WRAP_31), '1:0'))
plant(LL, 'clean_up_of_half_the_slot',
      'const uint32_t slot_lines = @link->step_bytes / line_wire_bytes(kind)@;',
      'link->step_bytes / line_wire_bytes(kind) / 2', 'wrong', slow(late(scenario('Ring', 'LL',
      '3 500 0 all_gather'), WRAP_31), '1:1'))
plant(LL, 'slot_freed_before_its_lines_are_read', '@prim_join(prim);@', '', 'wrong|hang', slow(RING_LL_LONG,
      '1:1'))
plant(LL, 'll_slots_not_awaited', '@LL_AWAIT(link_has_slots(&lane->send[i], 1));@', '', 'wrong|hang',
      slow(RING_LL_LONG, '1:1'))
plant(LL, 'll_line_not_counted', 'link->posted = link->step; @link->line += 1;@', '', 'wrong|hang', RING_LL)
plant(LL, 'll_slot_after_the_last', '@link->line_slot + 1 == link->slots@ ? 0',
      'link->line_slot == link->slots', 'wrong|hang|crash|silence', RING_LL)

# ---- direct collectives

DIRECT_H, DIRECT_LL, DIRECT_S = 'kernels/direct.h', 'kernels/direct_ll.h', 'kernels/direct_simple.h'
SCHEDULE = 'schedule/direct.h'
plant(DIRECT_H, 'further_links_off_by_one', 'return sends && recv_count > 1 ? @recv_count - 1@ : 0;',
      'recv_count', 'wrong|hang|crash|error', ONE_LL)
plant(DIRECT_H, 'first_further_link_twice',
      'return &direct_further[direct_before(sends) + @index - 1@].link;', 'index - 1 - (index > 1)',
      'wrong|hang', scenario('Direct', 'LL', '4 500 1'))
plant(DIRECT_H, 'direct_stop_of_the_previous_block', '@if (threadIdx.x == 0) direct_stopped = 0;@', '',
      'wrong|hang', ONE_LL)
plant(DIRECT_H, 'direct_counts_not_cleared',
      '@if (threadIdx.x < PRIM_WARPS_MAX) direct_done[threadIdx.x] = 0;@', '', 'wrong|hang',
      slow(TWO_SIMPLE, '1'))
plant(DIRECT_H, 'direct_phases_not_cleared', '@if (threadIdx.x == 0) direct_issued = direct_ended = 0;@',
      '', 'wrong|hang|crash|error', TWO_SIMPLE)
plant(DIRECT_H, 'direct_work_used_before_it_is_read',
      'if (threadIdx.x == 0) direct_issued = direct_ended = 0; @__syncthreads();@', '',
      'wrong|hang|crash|error', seeded(ONE_LL))
plant(DIRECT_H, 'direct_links_used_before_they_are_read',
      '((uint64_t *)direct_further)[i] = ((const uint64_t *)further)[i]; @__syncthreads();@', '',
      'wrong|hang|crash|error', seeded(ONE_LL))
plant(DIRECT_H, 'next_work_read_too_early', '@if (index > first_work) __syncthreads();@', '',
      'wrong|hang|error|crash', slow(scenario('Direct', 'LL', '3 500 3'), '1'))
plant(DIRECT_H, 'direct_step_not_saved', '@it->link.step + steps@, it->link.line + lines', 'it->link.step',
      'wrong|hang|error', ONE_SIMPLE)
plant(DIRECT_H, 'direct_lines_not_saved', 'it->link.step + steps, @it->link.line + lines@', 'it->link.line',
      'wrong|hang', ONE_LL)
plant(DIRECT_H, 'direct_head_not_posted',
      '@if (it->keeps && !it->sends) prim_store_word(&it->link.sender->head, ' 'it->link.step);@', '',
      'hang', scenario('Direct', 'LL', '3 500 0 all_gather'))
plant(DIRECT_H, 'direct_head_too_early', 'prim_store_word(&it->link.sender->head, @it->link.step@);',
      'it->link.step + 4', 'wrong|hang', slow(scenario('Direct', 'LL', '3 9000 0 broadcast'), '1:1'))
plant(DIRECT_H, 'direct_size_not_announced',
      '@prim_tagged_write(it->announced, it->tag, lane_agreed_bytes(direct_of()));@', '', 'hang', ONE_LL)
plant(DIRECT_H, 'direct_size_not_compared', 'known && @bytes != lane_agreed_bytes(direct_of())@', 'false',
      'error|hang|wrong', MISMATCH._replace(env=MISMATCH.env + ' NCCL_ALGO=allreduce:Direct NCCL_PROTO=LL'))
plant(DIRECT_H, 'direct_abort_not_seen',
      'if (@(prim_flag(abort_flag) | prim_flag(it->arguments->failed)) != 0@)', 'false', 'error|hang',
      MISMATCH._replace(env=MISMATCH.env + ' NCCL_ALGO=allreduce:Direct NCCL_PROTO=LL', program='abort'))
plant(DIRECT_H, 'half_of_a_direct_line_compared',
      'return line_half_has(pair.x, flag) && @line_half_has(pair.y, flag)@;', 'true',
      'race|wrong', RACE_ONE_LL, '.')
plant(DIRECT_H, 'direct_store_past_the_end', 'if (((uintptr_t)to & 7) == 0 && @bytes - offset >= 8@)',
      'true', 'wrong', ONE_LL)
# wrap.c finds none of these four: its types have four bytes, and it calls nothing in place.
plant(DIRECT_H, 'halves_stored_past_the_end', 'if (((uintptr_t)to & 7) == 0 && @bytes - offset >= 8@)',
      'bytes - offset > 4', 'wrong', PLANS_LL, 'a store past the end')
plant(DIRECT_LL, 'a_bfloat16_added_twice',
      'return @direct_add_typed<LINKS, TYPE_BFLOAT16>(words, loop->recv_count)@;',
      'word_combine(TYPE_BFLOAT16, OP_SUM, direct_add_typed<LINKS, TYPE_BFLOAT16>(words, loop->recv_count), '
      'own)', 'wrong', PLANS_LL, 'element is there twice')
plant(DIRECT_LL, 'a_half_not_added',
      'return @direct_add_typed<LINKS, TYPE_HALF>(words, loop->recv_count)@;',
      'direct_add_typed<LINKS, TYPE_HALF>(words, loop->recv_count - 1)', 'wrong', PLANS_LL,
      'element is missing')
plant(DIRECT_LL, 'own_block_in_place_from_the_first_block',
      'loop->in = @direct_in(step->in_offset + row)@;',
      '(direct_of()->func == FUNC_ALL_GATHER && (direct_of()->flags & WORK_IN_PLACE) != 0 ? '
      '(const uint8_t *)direct_out(step->in_offset + row) : direct_in(step->in_offset + row))', 'wrong',
      PLANS_GATHER)
plant(DIRECT_LL, 'partial_line_forgotten', 'return @(threadIdx.x + ahead) * 8 < bytes@;',
      '(threadIdx.x + ahead) * 8 + 8 <= bytes', 'wrong', ONE_LL)
plant(DIRECT_LL, 'second_step_uses_the_first_slot',
      '__shfl_sync(PRIM_ALL_LANES, (uint32_t)it->link.line, (int)thread) + @step@;', '0', 'wrong|hang',
      TWO_LL)
plant(DIRECT_LL, 'lines_of_the_receive_link', 'direct_number(it, @DIRECT_SENDS + link@, step)', 'link',
      'wrong|hang', scenario('Direct', 'LL', '3 500 0 broadcast'))
plant(DIRECT_LL, 'last_rank_not_added', 'if (@rank <= others@) sum = word_combine', 'rank < others',
      'wrong', ONE_LL)
plant(DIRECT_LL, 'last_link_of_any_sum_missing',
      'for (uint32_t rank = 0; @rank <= loop->recv_count@; rank++)', 'rank < loop->recv_count', 'wrong',
      ONE_LL)
plant(DIRECT_LL, 'sender_of_a_reduction_does_not_scale',
      '(!direct_has(work, DIRECT_SUM) && @work->op != OP_PRE_MUL_SUM@)', 'true', 'wrong',
      REDUCE_LL._replace(arguments='reduce -g 3 -b 4000 -e 4000 -o avg -d float'), '.')
plant(DIRECT_LL, 'collect_waits_for_the_first_step',
      'direct_receive(it, loop, begun, @loop->adds ? 1 : 0@, false, words)', '0', 'wrong|hang', TWO_LL)
plant(DIRECT_LL, 'vote_of_any_thread', 'if (@__all_sync(PRIM_ALL_LANES, flagged)@) break;',
      '__any_sync(PRIM_ALL_LANES, flagged)', 'wrong', slow(ONE_LL, '0:1'))
plant(DIRECT_LL, 'direct_counters_saved_before_they_are_read', '@direct_await_readers();@ direct_save(', '',
      'wrong|hang', slow(ONE_LL, '0'))
plant(DIRECT_LL, 'direct_slots_not_awaited',
      '@if (!ready && !direct_await_slots(it, true, steps)) return;@', '', 'wrong|hang',
      slow(scenario('Direct', 'LL', '3 9000 0 broadcast'), '1:1'))
plant(DIRECT_LL, 'direct_sizes_not_polled', '@if (loops == 1 && !direct_poll_sizes(it)) return;@', '',
      'error|hang|wrong', MISMATCH._replace(env=MISMATCH.env + ' NCCL_ALGO=allreduce:Direct NCCL_PROTO=LL'))
plant(DIRECT_LL, 'direct_clean_up_of_one_slot', '@if (names) ll_advance(&link);@', '', 'wrong',
      slow(late(scenario('TwoShot', 'LL', '3 500 0 all_reduce'), WRAP_32), '0:1'))
plant(DIRECT_LL, 'direct_loops_in_one_slot',
      'it->link.step += steps; @it->link.line += steps;@ __syncwarp();', '', 'wrong|hang',
      scenario('Direct', 'LL', '2 3000 0 all_gather'))
plant(DIRECT_S, 'move_without_its_last_vector', '@if (at < phase->bytes[link + k] / 16) '
      'prim_store_vector(direct_vector(&phase->to[link + k], at), vectors[k][v]);@',
      'if (at + 1 < phase->bytes[link + k] / 16) '
      'prim_store_vector(direct_vector(&phase->to[link + k], at), vectors[k][v]);', 'wrong', TWO_SIMPLE)
plant(DIRECT_S, 'spread_without_its_last_vector',
      '@if (at < count) prim_store_vector(to + (size_t)at * 16, vectors[v]);@',
      'if (at + 1 < count) prim_store_vector(to + (size_t)at * 16, vectors[v]);', 'wrong', ONE_SIMPLE)
plant(DIRECT_S, 'sum_of_links_without_its_last_vector',
      '@if (at < count) prim_store_vector(to + (size_t)at * 16, sums[v]);@',
      'if (at + 1 < count) prim_store_vector(to + (size_t)at * 16, sums[v]);', 'wrong', ONE_SIMPLE)
plant(DIRECT_S, 'last_source_not_added', 'else if (@source + k <= phase->links@) sums[v]',
      'source + k < phase->links', 'wrong', ONE_SIMPLE)
plant(DIRECT_S, 'rest_of_a_move_forgotten',
      '(uint8_t *)(uintptr_t)phase->to[link] + skip, @phase->bytes[link] - skip@, ' 'phase->scales',
      'phase->whole ? 0 : phase->bytes[link]', 'wrong', scenario('TwoShot', 'Simple', '3 507 1'))
plant(DIRECT_S, 'rest_of_a_sum_forgotten', 'if (@skip == phase->own_bytes@) return;', 'phase->whole',
      'wrong', scenario('Direct', 'Simple', '3 507 1'))
plant(DIRECT_S, 'unaligned_links_use_whole_vectors',
      'const bool whole = __all_sync(PRIM_ALL_LANES, @(issue->places & 15) == 0@)', 'true', 'error',
      scenario('Direct', 'Simple', '3 507 1'), 'misaligned access of 16 bytes')
plant(DIRECT_S, 'sum_goes_to_the_place_of_its_link',
      'phase->to[step_is_each(step) ? index : @direct_target(step, index)@] = place;', 'index',
      'wrong|hang|error|crash', ROOT_REDUCE)
plant(DIRECT_S, 'sum_without_output_has_no_place',
      'descriptor->out = (@keeps ? phase->out : (uint8_t *)(uintptr_t)phase->to[0]@) + skip;', 'phase->out',
      'wrong|hang|error|crash', ROOT_REDUCE)
plant(DIRECT_S, 'passed_on_from_the_input',
      'else if (direct_passes_on(step)) @phase->in = (const uint8_t *)(uintptr_t)place;@',
      'phase->in = direct_in(step->in_offset);', 'wrong|hang|error|crash', ROOT_BROADCAST)
plant(DIRECT_S, 'passed_on_but_not_kept',
      'if (@direct_passes_on(step)@) phase->out = direct_out(step->out_offset);', 'false',
      'wrong|hang|error|crash', ROOT_BROADCAST)
plant(DIRECT_S, 'links_count_each_others_steps', '@if (direct_names(it, step)) issue->made += 1;@',
      'issue->made += 1;', 'wrong|hang|error|crash', slow(ROOT_BROADCAST, '1'))
plant(DIRECT_S, 'phase_given_before_it_is_written',
      '@issue->issued += 1;@ if (prim_lane() == 0) phase->whole = whole;',
      'issue->issued += 1; if (prim_lane() == 0) *(volatile uint32_t *)&direct_issued = '
      'issue->issued; simt_yield();', 'wrong|hang|error|crash', slow(ONE_SIMPLE, '0'))
plant(DIRECT_S, 'phase_counted_before_it_is_moved',
      '@direct_run_phase(&direct_phases[number % DIRECT_PHASES], share);@',
      'if (prim_lane() == 0) *(volatile uint32_t *)&direct_done[direct_warp()] = number + '
      '1; direct_run_phase(&direct_phases[number % DIRECT_PHASES], share);', 'wrong', slow(ONE_SIMPLE, '1'))
plant(DIRECT_S, 'last_direct_warp_not_counted',
      'if (@prim_lane() < direct_compute_warps() + (seen ? 1 : 0)@)',
      'prim_lane() + 1 < direct_compute_warps() + (seen ? 1 : 0)', 'wrong', slow(scenario('TwoShot',
      'Simple', '3 9000 1'), '-2:1'))
plant(DIRECT_S, 'posted_when_issued', 'const uint32_t now = @size_min(direct_phases_done(false), issued)@;',
      'issued', 'wrong', slow(ONE_SIMPLE, '1'))
plant(DIRECT_S, 'phase_overwritten_too_early',
      'while (issue->issued >= DIRECT_PHASES && @direct_phases_done(true) <= issue->issued '
      '- DIRECT_PHASES@)', 'direct_phases_done(true) < issue->issued - DIRECT_PHASES',
      'wrong|hang|error|crash', slow(scenario('TwoShot', 'Simple', '3 9000 1',
      'NCCL_BUFFSIZE=16384'), '1'))
plant(DIRECT_S, 'sum_overwrites_what_is_being_sent',
      'while (@(step->flags & STEP_IN_ORDER) != 0@ && direct_phases_done', 'false', 'equal',
      slow(scenario('Direct', 'Simple', 'all_reduce -g 3 -b 16K -e 64K -f 2', program='bench'), '1'),
      'a thread sends and sums the same vectors, one after the other')
plant(DIRECT_S, 'direct_slots_not_awaited_in_a_step', 'return @direct_await_slots(it, names, 1)@ &&',
      'true', 'wrong|hang', slow(scenario('Direct', 'Simple', '3 9000 0 broadcast', 'NCCL_BUFFSIZE=16384'),
      '1:1'))
plant(DIRECT_S, 'direct_data_not_awaited',
      'direct_await_data(it, @names && !it->sends && !(direct_reads_inputs(step) && '
      'it->link.direct != 0)@)', 'false', 'wrong', TWO_SIMPLE)
plant(DIRECT_S, 'direct_input_overwritten_too_early', '@direct_await_heads(it);@', '', 'wrong|hang',
      slow(ONE_SIMPLE, '0:1'))
plant(DIRECT_S, 'issue_warp_reads_saved_counters', '@direct_both_read(true);@', '', 'wrong|hang',
      slow(ONE_SIMPLE, '0'))
plant(DIRECT_S, 'output_shown_without_the_shift', '(uint64_t)(uintptr_t)memory + @shift@', '0',
      'wrong|hang|crash|error', PROCESSES_DIRECT, '.')
plant(DIRECT_S, 'direct_tail_one_step_too_early', 'prim_store_word(&link->receiver->tail, @now@);',
      'now + 1', 'wrong|hang', TWO_SIMPLE)
plant(DIRECT_S, 'direct_steps_of_one_loop_saved',
      'const uint32_t all = @(uint32_t)direct_loops(work) * direct_link_steps(work)@;',
      'direct_link_steps(work)', 'wrong|hang|error', scenario('Direct', 'Simple', '3 30000 0 all_gather',
      'NCCL_BUFFSIZE=65536'))
plant(DIRECT_S, 'end_told_one_phase_too_early', 'prim_post(&direct_ended, @issue.issued + 1@);',
      'issue.issued', 'wrong|hang', ONE_SIMPLE)

plant(SCHEDULE, 'shard_of_the_next_rank', 'const size_t chunk = step->count, begin = @work->rank * chunk@;',
      '(work->rank + 1) % work->rank_count * chunk', 'wrong|hang|error', TWO_SIMPLE)
plant(SCHEDULE, 'last_shard_too_long', 'step->count = @rest > begin ? size_min(chunk, rest - begin) : 0@;',
      'chunk', 'wrong|hang', TWO_LL)
plant(SCHEDULE, 'own_block_of_a_gather_misplaced',
      'if ((work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP; step->out_offset '
      '+= @work->rank * work->count@;', '(work->rank ^ 1) * work->count', 'wrong|error|crash', ONE_LL)
plant(SCHEDULE, 'sender_of_a_reduction_adds', 'return @work->recv_count > 0@ && (func ==', 'true',
      'wrong|hang|crash|error', REDUCE_LL)
plant(SCHEDULE, 'last_loop_missing', 'return @size_div_up(work->part_count, direct_loop_elements(work))@;',
      'size_max(1, work->part_count / direct_loop_elements(work))', 'wrong|hang|error', scenario('Direct',
      'Simple', '3 30000 0 all_gather', 'NCCL_BUFFSIZE=65536'))
plant(SCHEDULE, 'loops_do_not_overlap', '@if ((work->flags & WORK_LOOPS_OVERLAP) == 0) return 0;@',
      'return 0;', 'equal', scenario('Direct', 'Simple', '3 30000 0 all_gather', 'NCCL_BUFFSIZE=65536'),
      'loops one after another take longer and give the same')

# ---- the host

CUDA = 'backends/cuda/'
plant(CUDA + 'first_step.c', 'first_step_of_one_end', 'if (@limits->first_step == 0@) return ncclSuccess;',
      '!sends', 'hang|wrong|error', late(RING_SIMPLE, WRAP_32))
plant(CUDA + 'first_step.c', 'first_lines_not_written',
      'if (@limits->first_step == 0 || proto == PROTO_SIMPLE@)', 'true', 'wrong', late(RING_LL, WRAP_32))
plant(CUDA + 'conn.c', 'ends_of_the_wrong_ranks',
      'map_insert(&receiver->conns, backend_conn_key(sender->config.rank, channel_index, '
      'conn_index, @false@), conn);', 'true', 'crash|hang|error', RING_LL)
plant(CUDA + 'conn.c', 'proxy_begins_at_line_0', 'end->first_line = @limits->first_step@;', '0',
      'hang|wrong|error', scenario('Ring', 'LL', '0 500 1', WRAP_32, processes=2, hosts='sockets'))
plant(CUDA + 'conn.c', 'proxy_begins_at_step_0', 'end->first_step = @first_step_of(limits, conn->pooled)@;',
      '0', 'hang|wrong|error', scenario('Ring', 'Simple', '0 500 1', WRAP_32, processes=2, hosts='sockets'))
plant(CUDA + 'conn.c', 'pooled_steps_have_free_slots',
      'const uint64_t first = first_step_of(limits, @true@);', 'false', 'hang|wrong|error', scenario('Ring',
      'Simple', 'sendrecv -b 128 -e 32K -f 16', program='bench', processes=2, hosts='sockets'), '.')
plant(CUDA + 'conn.c', 'proxy_writes_without_a_clean_up',
      '@if (line_cleans_at(step->line, step->flag_bits, conn->slots)) net_ll_clean(lines, conn->ll_bytes, '
      'step);@', '',
      'wrong|error|hang', scenario('Ring', 'LL', '0 500 0 all_gather', WRAP_32, processes=2, hosts='sockets'))
plant(CUDA + 'conn_remote.c', 'first_step_of_the_other_kind',
      'made = cuda_first_end(limits, @name->sends@, own_block(conn)->address);', '!name->sends', 'equal',
      late(PROCESSES_WRAP, WRAP_32),
      'both kinds have the same counters; only old tags are missing, which hides other ' 'faults')
plant(CUDA + 'conn_remote.c', 'slots_at_the_beginning_of_a_piece',
      'remote->buffers[handle->proto]->base + @handle->buffer@;', '0', 'wrong|hang|crash|error',
      PROCESSES_WRAP)
plant(CUDA + 'conn_remote.c', 'end_at_the_beginning_of_a_piece', 'remote->end->base + @handle->end@;', '0',
      'wrong|hang|crash|error', PROCESSES_WRAP._replace(processes=3))
plant(CUDA + 'conn_remote.c', 'end_not_in_memory_of_the_host', 'return @conn->on_host@ ? ARENA_SHM :',
      'false', 'error', PROCESSES_SHM, '.')
GPUDIRECT = scenario('Ring', 'Simple', 'all_reduce -b 8 -e 128K -f 16',
                     'TUTTI_NET_DEVICE_SLOTS=1 SIMT_RDMA=dmabuf', program='bench', processes=2, hosts='nics')
plant(CUDA + 'conn.c', 'slots_of_gpus_taken_for_the_hosts',
      'end->memory = @comm->net_memory[name->sends] == POINTER_DEVICE@ ?', 'false', 'error', GPUDIRECT,
      'system error')
plant(CUDA + 'dmabuf.c', 'dmabuf_begins_a_page_late', 'ask(descriptor, (CUdeviceptr)@begin@,', 'begin + page',
      'error|crash', GPUDIRECT, 'DMA-BUF')
plant(CUDA + 'dmabuf.c', 'slots_of_gpus_although_nics_refuse', 'comm->net_memory[false] = @receives@;',
      'POINTER_DEVICE', 'error',
      scenario('Ring', 'Simple', 'all_reduce -b 8 -e 128K -f 16',
               'NCCL_NET_GDR_LEVEL=SYS SIMT_RDMA=dmabuf SIMT_RDMA_LIMIT=0', program='bench', processes=2,
               hosts='nics'), 'invalid usage')
plant(CUDA + 'arena.c', 'own_pages_by_the_hosts_address', 'base = @piece->pages.device@;',
      'piece->pages.host', 'crash', PROCESSES_SHM)
plant(CUDA + 'ipc.c', 'peers_pages_by_the_hosts_address', 'mapping->base = @mapping->pages.device@;',
      '(uint8_t *)mapping->pages.host', 'crash|error', PROCESSES_SHM, '.')
plant(CUDA + 'ipc.c', 'pieces_of_the_host_look_like_devices',
      'piece->device_index == @ARENA_SHM@ ? IPC_NUMBER', 'UINT32_MAX', 'error', PROCESSES_SHM, '.')
plant(CUDA + 'region.c', 'shift_is_an_address',
      'const uint64_t found = @region->answers[peer] - region->base@;', 'region->answers[peer]',
      'wrong|hang|crash|error', PROCESSES_DIRECT, '.')
plant(CUDA + 'region.c', 'first_piece_stands_for_all',
      'if (@address + bytes <= region->base + region->bytes@) return true;', 'true', 'wrong|hang|crash|error',
      VMM_REMAP, '.')
plant(CUDA + 'ipc_region.c', 'number_of_a_piece_not_compared',
      'if (@region->id == id_now(address, region->base, region->is_piece)@) return region;', 'true',
      'wrong|hang|crash|error', VMM_REMAP, '.')
plant(CUDA + 'ipc_region.c', 'memory_shown_twice_returned_once',
      'if (*place != NULL && @--(*place)->shown_count == 0@)', 'true', 'wrong|hang|crash|error',
      LEASES_EVICT, '.')
plant(CUDA + 'ipc_window.c', 'other_memory_has_the_same_number',
      'hash_mix(hash_mix(HASH_SEED, cuda_memory_id(address)), @block@)', '1', 'wrong|hang|crash|error',
      VMM_REMAP, '.')
plant(CUDA + 'ipc_window.c', 'pieces_at_the_beginning_of_the_window',
      'memory->range.offset = @memory->base - range@;', '0', 'wrong', VMM_USED, 'did not access')
NO_ACCESS = 'to which it has no access'
plant(CUDA + 'access.c', 'access_of_the_device_not_asked',
      'pieces->accessible && @has_access(base, device_index)@;', 'true', 'crash|error', VMM_THREADS,
      NO_ACCESS)
plant(CUDA + 'access.c', 'access_of_one_piece_is_that_of_all',
      '@pieces->accessible && has_access(base, device_index)@;',
      '(count > 0 ? pieces->accessible : has_access(base, device_index))', 'crash|error', VMM_THREADS,
      NO_ACCESS)
plant(CUDA + 'launch.c', 'memory_of_the_process_shown_in_a_graph',
      'return @!captured@ && cuda_access_reaches(', 'true', 'crash|error', VMM_THREADS, NO_ACCESS)
plant(CUDA + 'launch.c', 'access_asked_of_the_own_device', 'conn->devices[@sends ? 0 : 1@]', 'sends ? 1 : 0',
      'crash|error', VMM_THREADS, NO_ACCESS)
plant(CUDA + 'alloc.c', 'address_within_an_allocation_freed',
      'own != NULL && @found.base == (uint64_t)(uintptr_t)pointer@;', 'true', 'wrong', VMM_ALLOC,
      'wrong: ncclMemFree')
plant(CUDA + 'alloc.c', 'setting_without_memory_of_create_ignored',
      'return @param_int(PARAM_CUMEM_ENABLE) != 0@ && vmm_driver()', 'true', 'wrong', VMM_ALLOC_PLAIN,
      'wrong: ncclMemAlloc makes memory of cuMemCreate')
plant(CUDA + 'alloc.c', 'other_devices_get_no_access', 'if (@other == (int)device_index@) continue;', 'true',
      'error', VMM_ALLOC, 'READWRITE: 1')
plant(CUDA + 'conn.c', 'slots_to_read_at_the_receiver',
      'struct device_comm *owner = slots == SLOTS_AT_SENDER ? @sender@ : receiver;', 'receiver', 'wrong',
      READ_SLOTS, 'must be at the sender')
plant(CUDA + 'conn_remote.c', 'slots_to_read_not_mapped',
      'if (!ipc_conn_has_slots(@!remote->sends@, (uint8_t)handle->proto)', 'remote->sends',
      'wrong|hang|crash|error', READ_PROCESSES)
plant(CUDA + 'launch.c', 'warps_by_the_first_work', 'const void *)works[@batch->first_work + i@].work;',
      'batch->first_work', 'steps', stepped(BENCH_TREE), 'work 0 of 2 has 8 warps, but must have 11')
plant(CUDA + 'launch.c', 'slots_to_write_bound_to_read',
      'link->buffer = conn->buffer[@conn->net ? work->proto : work_slots(work)@];', 'work->proto',
      'wrong|hang|crash|error', READ_TREE)
plant(CUDA + 'launch.c', 'second_work_has_the_links_of_the_first',
      'works[i].further = @further_entries(&work) > 0 ? further_used : 0@;', '0', 'wrong|hang|error|crash',
      scenario('Direct', 'LL', '3 500 3'))
plant(CUDA + 'launch.c', 'hidden_output_offered',
      '@if (!shift_find(comm, work, i, false, out, asked, &shifts[i])) work->flags |= '
      'WORK_OUTPUT_HIDDEN;@', 'shift_find(comm, work, i, false, out, asked, &shifts[i]);',
      'wrong|hang|crash|error', PROCESSES_RING, '.')
plant(CUDA + 'launch.c', 'hidden_input_shown',
      '@if (!shift_find(comm, work, i, true, in, asked, &shifts[i])) shifts[i] = ' 'LAUNCH_HIDDEN;@',
      'shift_find(comm, work, i, true, in, asked, &shifts[i]);', 'wrong|hang|crash|error',
      scenario('Direct', 'Simple', 'all_reduce -b 256K -e 256K', program='bench', processes=2), '.')
plant(CUDA + 'launch.c', 'one_warp_too_few', 'size_max(warps, @own - 1@)', 'own - 2', 'wrong|hang|error',
      ONE_LL)
plant(CUDA + 'launch.c', 'single_pass_one_warp_too_long',
      'case LAUNCH_KERNEL_ONCE: return @(LAUNCH_ONCE_WARPS - 1) * WARP_LL_BYTES@;',
      'LAUNCH_ONCE_WARPS * WARP_LL_BYTES', 'wrong', scenario('Direct', 'LL', '2 1050 0 all_gather',
      'NCCL_LL_BUFFSIZE=131072'))
plant(CUDA + 'launch.c', 'kernel_of_two_ranks_for_more', 'return @adds && comm->config.rank_count == 2@ ?',
      'adds', 'wrong', ONE_SIMPLE)
plant(CUDA + 'launch.c', 'scalar_not_read', '@work.flags |= WORK_SCALAR;@', '', 'wrong|error',
      scenario('Ring', 'LL', '', 'TUTTI_EMU=mode=threads,devices=2', program='scalar'))
plant(CUDA + 'launch.c', 'last_batch_forgotten',
      'first_batch[block_count] = @(uint16_t)plan->batch_count@;',
      '(uint16_t)(plan->batch_count - (plan->batch_count > block_count))', 'wrong|hang|error',
      scenario('Ring', 'LL', '6 500 2 all_to_all'))
plant(CUDA + 'extent.c', 'block_taken_twice', 'part->offset += @rounded@;', 'rounded - EXTENT_ALIGN',
      'wrong|hang|error|crash|silence', RING_LL)
KEPT = CUDA + 'launch_kept.c'
plant(KEPT, 'launch_of_another_plan_repeated', '@kept->serial != serial@', 'kept->serial == 0',
      'wrong|hang|error', AGAIN)
plant(KEPT, 'launch_with_memory_of_other_allocations_repeated', 'return @asked->id == kept->memory[row].id@;',
      'true', 'wrong|hang|crash|error', LEASES_REPEAT, '.')
plant(KEPT, 'repeated_launch_reads_the_first_input', 'works[i].in = @cached->buffers[i].in@;', 'works[i].in',
      'wrong|error|crash', AGAIN)
plant(KEPT, 'repeated_launch_writes_the_first_output', 'works[i].out = @cached->buffers[i].out@;',
      'works[i].out', 'wrong|error|crash', AGAIN)
plant(KEPT, 'memory_of_a_repeated_launch_not_compared', 'if (@!memory_is_kept(kept)@ ||', 'false', 'equal',
      AGAIN, 'all devices of a process see whatever is at an address at that address')
plant(KEPT, 'memory_that_processes_have_mapped_not_compared',
      'if (@memory_id(&kept->memory[i]) != kept->memory[i].id@) return false;', 'false',
      'wrong|hang|crash|error', LEASES_REPEAT, '.')
plant(KEPT, 'returned_memory_not_noticed',
      'const bool same = @comm->regions.generation == kept->generation@;', 'true', 'wrong|hang|crash|error',
      LEASES_EVICT, '.')
plant(KEPT, 'launch_kept_before_its_memory_is_shown', '@!launch_is_decided(comm, plan)@) return NULL;',
      'false', 'equal', LEASES_REPEAT, 'slots do as well')

# ---- results are right, but the kernel does something else than the schedule says


def deviate(file, name, find, replace, run, says=None):
    plant(file, name, find, replace, 'steps', stepped(run), says)


deviate(SIMPLE, 'tail_of_two_slices_at_once',
        '@prim_store_tail(prim, &lane->send[i].receiver->tail, lane->send[i].posted);@',
        'if (lane->work->chunk_steps == steps || lane->posted % 2 == 1) prim_store_tail(prim, '
        '&lane->send[i].receiver->tail, lane->send[i].posted);', RING_LONG, 'posts tail')
deviate(SIMPLE, 'head_half_a_slice_too_early',
        'prim_store_head(prim, &lane->recv[i].sender->head, @lane->recv[i].posted@);',
        'lane->recv[i].posted + (steps > 1)', RING_LONG, 'posts head')
deviate(DIRECT_H, 'head_of_the_first_step_at_once',
        'prim_store_word(&it->link.sender->head, @it->link.step@);', 'it->link.step + 1', ONE_LL,
        'posts head')
deviate(DIRECT_LL, 'surplus_line_of_a_block',
        'direct_has_line(@SCATTERED ? loop->sent[link].bytes : loop->bytes@, direct_ahead(begun, b))) '
        'direct_put(', '(SCATTERED ? loop->sent[link].bytes : loop->bytes) + 8', ONE_LL,
        'no such line|where no step has it')
deviate(DIRECT_LL, 'word_behind_the_input_is_read', 'prim_load_word_if(@whole@, from + offset)',
        'bytes > 0 && offset < bytes + 8 && ((uintptr_t)from & 7) == 0', PLANS_LL, 'is read .* times, not 0')
deviate(DIRECT_H, 'every_word_of_the_output_twice',
        '>= 8) @element_store(to + offset, 8, word)@;',
        '(element_store(to + offset, 8, word), element_store(to + offset, 8, word))', ONE_LL,
        'is written 2 times, not 1')
deviate(COMPUTE, 'vector_of_a_slot_twice',
        '@if (at < count) span_store(span, skip + 16 * at, data[k]);@',
        'if (at < count) { span_store(span, skip + 16 * at, data[k]); if (at == 0) span_store(span, skip, '
        'data[k]); }',
        RING_SIMPLE, 'written 2 times')
deviate(LANE, 'size_announced_twice', 'lane_agreed_bytes(lane_part(lane))); @link->agreed = true;@',
        'prim_tagged_store(prim, link_announcement(link, lane_proto(lane->work)), link_tag(link), '
        'lane_agreed_bytes(lane_part(lane))); link->agreed = true;', RING_LONG, 'announces a size 2 times')
# A warp takes its lines together here, by when the old one is replaced, so the result is right; on a GPU
# lines may arrive one by one.
deviate(LL, 'clean_up_skips_a_line',
        'for (uint32_t line = @ll_link_lines(lane, index)@; line < slot_lines; line++)',
        'll_link_lines(lane, index) + 1', late(scenario('Ring', 'LL', '3 500 0 all_gather'), WRAP_32),
        'was not written')
deviate(DIRECT_LL, 'direct_clean_up_skips_a_line', '__shfl_sync(PRIM_ALL_LANES, @used@, holder)', 'used + 1',
        late(scenario('Direct', 'LL', '3 500 0 all_gather'), WRAP_32), 'was not written')

# ---- each order of memory that kernels demand, weakened: by name, the order is gone


def weaken(file, name, find, replace, run, shows='race', says=None):
    plant(file, name, find, replace, shows, run, says)


STRONG = '4, SIMT_STRONG)'
weaken(PRIM, 'descriptors_without_a_release', '@prim_post(&prim->queue->issued, prim->issued);@',
       '*(volatile uint32_t *)&prim->queue->issued = prim->issued;', RACE_SIMPLE)
weaken(PRIM, 'descriptors_before_all_lanes_have_read', 'if (!prim->issues) return; @prim_converge();@', '',
       RACE_SIMPLE)
weaken(PRIM, 'descriptors_of_many_links_without_a_release',
       '@prim_post(&prim->queue->issued, prim->issued + 1);@',
       '*(volatile uint32_t *)&prim->queue->issued = prim->issued + 1;', RACE_TREE)
VOTED = 'a vote shows that the lanes have read, and no store is executed before the vote that decides it'
weaken(PRIM, 'descriptors_of_many_links_before_all_lanes_have_read', '@prim_converge_reads();@', '',
       RACE_TREE, 'equal', VOTED)
weaken(PRIM, 'done_without_an_acquire',
       'done = @prim_peek(&prim_shared.done[prim->first_compute_warp + prim_lane()])@;',
       '(uint32_t)simt_load(&prim_shared.done[prim->first_compute_warp + prim_lane()], ' + STRONG,
       RACE_SIMPLE)
weaken(PRIM, 'posted_before_all_lanes_have_seen_it_done',
       '!prim_aborted(prim)) {} @prim_converge();@', '', RACE_SIMPLE)
weaken(PRIM, 'place_reused_before_all_lanes_have_seen_it_free',
       'prim_await_place(prim); @prim_converge();@', '', raced(scenario('allreduce:Tree', 'LL', '3 3000 1')),
       'equal', VOTED)
weaken(PRIM, 'tail_without_an_acquire',
       'prim_load_tail(const uint64_t *address) { return @prim_load_posted_together(address)@; }',
       'simt_load_together(address, 8, SIMT_STRONG)', RACE_SIMPLE)
weaken(PRIM, 'direct_tail_without_an_acquire',
       'prim_load_tail(const uint64_t *address) { return @prim_load_posted(address)@; }',
       'prim_load_word(address)', RACE_TWO)
weaken(PRIM, 'tail_without_a_fence', '@if (prim_stores(prim)) prim_fence();@', '', RACE_SIMPLE)
weaken(PRIM, 'fence_covers_later_slices', '@prim->fenced = prim->done;@', 'prim->fenced = UINT32_MAX;',
       RACE_SIMPLE)
weaken(PRIM, 'told_memory_without_an_acquire', 'prim_tagged_holds(@prim_load_pair_posted_together(word)@,',
       'simt_load_pair_together(word, SIMT_STRONG)', RACE_SIMPLE)
weaken(PRIM, 'direct_told_memory_without_an_acquire', 'prim_tagged_holds(@prim_load_pair_posted(word)@,',
       'prim_load_pair(word)', RACE_TWO)
weaken(COMPUTE, 'descriptors_without_an_acquire', '(@prim_peek_together(&queue->issued)@ - count)',
       '(uint32_t)simt_load_together(&queue->issued, ' + STRONG, RACE_SIMPLE)
weaken(COMPUTE, 'descriptor_read_by_lanes_apart', '@prim_converge_reads();@', '', RACE_SIMPLE, 'equal',
       'each lane has read the count by an acquire of its own')
weaken(COMPUTE, 'done_without_a_release', '@prim_post(done, count + 1);@',
       '*(volatile uint32_t *)done = count + 1;', RACE_SIMPLE)
weaken(BLOCK, 'next_batch_before_all_warps_have_ended',
       'launch_invite_next(); @__syncthreads();@ } if (first == end)', '', RACE_SIMPLE, 'race|hang|wrong',
       '.')
weaken(DIRECT_H, 'direct_work_read_before_it_is_there', 'direct_ended = 0; @__syncthreads();@', '',
       RACE_ONE_LL, 'race|error|crash|hang', '.')
weaken(DIRECT_H, 'direct_links_read_before_they_are_there', 'further)[i]; @__syncthreads();@', '',
       RACE_ONE_LL, 'race|error|crash|hang', '.')
weaken(DIRECT_S, 'direct_previous_kernel_not_awaited',
       '@if (awaits) launch_await_previous();@ for (uint32_t number = 0;;', '', RACE_TWO, 'equal',
       'each phase comes from the issue warp, which has waited for the previous kernel')
weaken(DIRECT_S, 'phases_without_a_release', '@prim_post(&direct_issued, issue->issued);@',
       '*(volatile uint32_t *)&direct_issued = issue->issued;', RACE_TWO)
weaken(DIRECT_S, 'phases_before_all_lanes_have_written',
       '@__syncwarp();@ if (prim_lane() == 0) prim_post(&direct_issued, issue->issued);', '', RACE_TWO)
weaken(DIRECT_S, 'phases_without_an_acquire', '@prim_peek(&direct_issued)@ > number',
       '(uint32_t)simt_load(&direct_issued, ' + STRONG, RACE_TWO)
weaken(DIRECT_S, 'phase_done_before_all_lanes_have_moved',
       '@__syncwarp();@ if (prim_lane() == 0) prim_post(&direct_done[direct_warp()], number + 1);', '',
       RACE_TWO)
weaken(DIRECT_S, 'phase_done_without_a_release', '@prim_post(&direct_done[direct_warp()], number + 1);@',
       '*(volatile uint32_t *)&direct_done[direct_warp()] = number + 1;', RACE_TWO)
weaken(DIRECT_S, 'phase_done_without_an_acquire', 'done = @prim_peek(&direct_done[1 + prim_lane()])@;',
       '(uint32_t)simt_load(&direct_done[1 + prim_lane()], ' + STRONG, RACE_TWO)
weaken(DIRECT_S, 'direct_tail_without_a_fence', 'if (it->sends) { @prim_fence();@', '', RACE_TWO)
weaken(DIRECT_S, 'direct_posted_before_all_lanes_have_seen_it_done',
       "later it may be another's */ @__syncwarp();@", '', RACE_TWO)
weaken(DIRECT_S, 'phase_read_after_it_was_left',
       '@if (now != done) steps = latest->made[prim_lane()];@',
       'steps = latest->made[prim_lane()];', RACE_LOOPS)
weaken(DIRECT_S, 'phase_reused_before_all_lanes_have_seen_it_done',
       '@__syncwarp();@ /* each lane has seen some warps done */', '', RACE_LOOPS, 'equal', VOTED)
weaken(DIRECT_S, 'phase_written_before_it_is_cleared',
       'phase->bytes[prim_lane()] = 0; @__syncwarp();@', '', RACE_TWO)
# A kernel of another stream begins when the blocks of the one before it have been counted.
STREAMS_RING, STREAMS_LL, STREAMS_DIRECT = streams(RING_LL), streams(ONE_LL), streams(ONE_SIMPLE)
weaken(BLOCK, 'end_counted_without_a_fence', 'if (threadIdx.x != 0) return; @__threadfence();@', '',
       STREAMS_RING)
weaken(DIRECT_H, 'direct_end_counted_too_early', '@while (!direct_others_gone()) {}@', '', STREAMS_LL)
weaken(DIRECT_LL, 'saved_counters_without_a_fence',
       '__syncwarp(); @__threadfence();@ for (uint32_t loops = 1;', '', STREAMS_LL)
weaken(DIRECT_S, 'saved_steps_without_a_fence',
       'direct_save(it, steps, 0); __syncwarp(); @__threadfence();@', '', STREAMS_DIRECT)
weaken(DIRECT_LL, 'cleaned_lines_without_a_fence', '@__threadfence_system();@ /* before other threads', '',
       late(STREAMS_LL, 'TUTTI_FIRST_STEP=4294967273'))
weaken(DIRECT_LL, 'cleaned_lines_of_other_lanes_without_a_fence', '@__syncwarp();@ /* lane 0', '',
       late(STREAMS_LL, 'TUTTI_FIRST_STEP=4294967273'))
weaken(COMPUTE, 'own_input_used_before_it_has_arrived', '@prim_fetch_end();@ PRIM_EACH_WORD(k) words[k]', '',
       RING_LL, 'wrong')

# ---- bulk copies. Copies are as late as the program allows, and garbage is where a load has not ended.

BULK = 'kernels/bulk.h'
LONG_COPIES = scenario('Ring', 'Simple', '3 270000 1')          # some of their spans have edges
ODD_COPIES = scenario('Ring', 'Simple', '3 270001 1')           # some have ends that are aligned differently
STEP_COPIES = stepped(LONG_COPIES)
SEND = 'sendrecv -g 2 -b 1048580 -e 1048580'                    # a message has an edge
RACE_SEND = raced(scenario('', 'Simple', SEND, program='bench'))
CHAIN = scenario('Ring', 'Simple', 'broadcast -g 2 -b 4M -e 4M', program='bench') # it goes by slots
STEP_CHAIN, RACE_CHAIN = stepped(CHAIN), raced(CHAIN)
BATCHES = scenario('', 'Simple', 'alltoall -g 8 -b 8M -e 8M', program='bench')
plant(BULK, 'bulk_stages_turned_too_early', 'index + 1 == @BULK_STAGES@ ? 0', 'BULK_STAGES - 1', 'wrong',
      LONG_COPIES)
plant(BULK, 'bulk_load_into_the_same_stage', '@bulk->load_stage = bulk_turn(bulk->load_stage);@', '',
      'wrong|hang|error', LONG_COPIES, '.')
plant(BULK, 'bulk_stages_loaded_too_far_ahead', 'bulk.loaded - bulk.stored < @BULK_STAGES - 1@',
      'BULK_STAGES', 'wrong', LONG_COPIES)
plant(BULK, 'bulk_stages_of_all_warps_are_one', '@bulk->index * BULK_STAGES * bulk->stage_bytes@', '0',
      'wrong', LONG_COPIES)
plant(BULK, 'bulk_stages_too_long', 'bulk->copy_warps / @BULK_STAGES@ /', '2', 'error', LONG_COPIES,
      'of shared memory that the launch requests')
plant(BULK, 'bulk_stage_reused_before_it_is_read', 'PRIM_BULK_AWAIT_READ(@1@)', '2', 'wrong', LONG_COPIES)
plant(BULK, 'bulk_stage_never_awaited', '@PRIM_BULK_AWAIT_READ(1);@', '', 'wrong', LONG_COPIES)
plant(BULK, 'bulk_load_not_awaited',
      '@while (prim_arrivals_ended(barrier, bulk->parities >> bulk->store_stage & 1) == 0) {}@', '',
      'wrong|error', LONG_COPIES)
plant(BULK, 'bulk_load_awaited_at_the_next_barrier', 'barrier = bulk->barriers + 8 * @bulk->store_stage@;',
      'bulk_turn(bulk->store_stage)', 'wrong|hang|error', LONG_COPIES, '.')
plant(BULK, 'bulk_parity_stays', '@bulk->parities ^= 1u << bulk->store_stage;@', '', 'wrong|error',
      LONG_COPIES, '.')
plant(BULK, 'bulk_parity_of_the_phase_before', '@bulk->parities >> bulk->store_stage & 1@',
      '(bulk->parities >> bulk->store_stage & 1) ^ 1', 'wrong|error|hang', LONG_COPIES, '.')
plant(BULK, 'bulk_load_expects_too_little', 'prim_arrivals_expect(barrier, @bytes@)', 'bytes - 16', 'hang',
      LONG_COPIES)
plant(BULK, 'bulk_declared_before_it_is_stored', '@if (prim_lane() == 0) PRIM_BULK_AWAIT_STORED(BULK_LAG);@',
      '', 'wrong|steps', STEP_CHAIN, 'ends, but byte .* was not written|wrong elements')
plant(BULK, 'bulk_declared_a_tile_too_early', 'bulk->stored - bulk->next_stored >= @BULK_LAG@)',
      'BULK_LAG - 1', 'wrong|steps', STEP_CHAIN, 'ends, but byte .* was not written|wrong elements')
plant(BULK, 'bulk_declared_when_all_but_three_are_stored', 'PRIM_BULK_AWAIT_STORED(@BULK_LAG@)',
      'BULK_LAG + 1', 'wrong|steps', STEP_CHAIN, 'ends, but byte .* was not written|wrong elements')
plant(BULK, 'bulk_last_tile_not_awaited', 'PRIM_BULK_AWAIT_STORED(@0@)', '1', 'wrong|error', LONG_COPIES, '.')
plant(BULK, 'bulk_descriptor_declared_before_its_tiles', 'bulk_declare(bulk, @bulk->next@);', 'passed',
      'wrong|steps', STEP_CHAIN, '.')
plant(BULK, 'bulk_group_not_ended', '@prim_bulk_group_end();@', '', 'error', LONG_COPIES,
      'a thread ends while one of its bulk copies is in flight')
plant(BULK, 'bulk_last_tile_too_long', '(uint32_t)size_min(@cursor->bytes - cursor->offset@,',
      'cursor->tile_bytes', 'wrong|error|steps', STEP_COPIES, '.')
plant(BULK, 'bulk_last_tile_too_short', '(uint32_t)size_min(@cursor->bytes - cursor->offset@,',
      '(cursor->bytes - cursor->offset) / 32 * 16 + 16', 'wrong', LONG_COPIES)
plant(BULK, 'bulk_last_tile_forgotten', 'if (@cursor->offset < cursor->bytes@) return true;',
      'cursor->offset + cursor->tile_bytes <= cursor->bytes', 'wrong', LONG_COPIES)
plant(BULK, 'bulk_tile_of_two_warps', 'cursor->before = @(uint32_t)((cursor->before + tiles) % '
      'bulk->copy_warps)@;', 'bulk->index % 2', 'wrong|steps', STEP_COPIES, '.')
plant(BULK, 'bulk_tiles_shared_unevenly', 'cursor->before = @(uint32_t)((cursor->before + tiles) % '
      'bulk->copy_warps)@;', '0', 'equal', LONG_COPIES,
      'each span is still cut into the same tiles; the first warps have more of them')
plant(BULK, 'bulk_first_vector_misplaced', 'return @(16 - (uint32_t)((uintptr_t)span->first % 16)) % 16@;',
      '(uint32_t)((uintptr_t)span->first % 16)', 'error', LONG_COPIES, 'not multiples of 16')
plant(BULK, 'bulk_copy_of_ends_aligned_differently', 'if (@places % 16 != 0@ ||', 'false', 'error',
      ODD_COPIES, 'not multiples of 16')
plant(BULK, 'bulk_edges_forgotten', '@compute_span(compute, span, cursor->bytes > 0);@',
      'if (cursor->bytes == 0) compute_span(compute, span, false);', 'wrong', LONG_COPIES)
plant(BULK, 'bulk_barriers_left_open', 'prim_lane() == 0) for (uint32_t i = 0; @i < BULK_STAGES@; i++) '
      'prim_arrivals_close(', 'false', 'error', BATCHES, 'a barrier of loads is opened twice')
plant(BULK, 'bulk_barriers_without_a_fence', '@prim_arrivals_fence();@', '', 'error', LONG_COPIES,
      'opened without a fence')
plant(BULK, 'bulk_end_not_seen', 'bulk->issued = @bulk->ended ? issued - 1 : issued@;', 'issued',
      'error|hang|wrong|crash', LONG_COPIES, '.')
plant('kernels/kernel_mixed.cu', 'bulk_shared_memory_not_allowed',
      'return @cudaFuncSetAttribute(kernels[LAUNCH_KERNEL_BULK], '
      'cudaFuncAttributeMaxDynamicSharedMemorySize, most)@;', 'cudaSuccess', 'error', LONG_COPIES, 'invalid')
deviate(BULK, 'bulk_vectors_moved_twice', 'compute_span(compute, span, @cursor->bytes > 0@);', 'false',
        LONG_COPIES, 'written 2 times')
weaken(BULK, 'bulk_loads_without_a_fence', '@prim_bulk_fence();@', '', RACE_CHAIN, 'race',
       'then: block . of device ., a copy engine for thread')
weaken(BULK, 'bulk_done_without_a_release',
       '@prim_post(&prim_shared.done[threadIdx.x / PRIM_WARP], descriptors);@',
       '*(volatile uint32_t *)&prim_shared.done[threadIdx.x / PRIM_WARP] = descriptors;', RACE_SEND)
weaken(BULK, 'bulk_descriptors_without_an_acquire', 'seen = @prim_peek(&bulk->queue->issued)@;',
       '(uint32_t)simt_load(&bulk->queue->issued, ' + STRONG, RACE_SEND)
weaken(BULK, 'bulk_descriptor_read_by_lanes_apart', '@prim_converge_reads();@ /* descriptors are read', '',
       RACE_SEND)
weaken(BULK, 'bulk_done_before_all_lanes_have_moved', 'cursor->bytes > 0); @prim_converge();@', '',
       RACE_SEND)
weaken(BULK, 'bulk_barriers_used_before_they_are_open', 'prim_arrivals_fence(); } @prim_converge();@', '',
       RACE_SEND, 'equal', 'the warp meets after each load, before its lanes wait for it')
weaken(BULK, 'bulk_barriers_closed_before_all_lanes_have_waited',
       'bulk_close(const struct bulk *bulk) { @prim_converge();@', '', RACE_SEND, 'equal',
       'the warp meets after each tile, when its lanes have waited for it')
weaken(BULK, 'bulk_stage_reused_before_it_is_read_in_order', '@PRIM_BULK_AWAIT_READ(1);@', '', RACE_SEND)
weaken(BULK, 'bulk_tail_posted_before_it_is_stored',
       '@if (prim_lane() == 0) PRIM_BULK_AWAIT_STORED(BULK_LAG);@', '', RACE_CHAIN)

# ---- lives: devices that are reset, communicators side by side, graphs between launches

plant(CUDA + 'reset.c', 'reset_not_noticed',
      'device_index >= DEVICES_MAX || !@cuda_device_was_reset(device_index)@) return;', 'false',
      'error|crash|hang', LIVES, '.')
plant(CUDA + 'device_ops.c', 'stream_of_an_earlier_life', '@own_streams[device_index] = NULL;@', '',
      'error|crash|hang', LIVES, '.')
plant(CUDA + 'arena.c', 'memory_of_an_earlier_life', '(uint32_t)maker && @!piece_lost(piece)@ &&', 'true',
      'error|crash|hang|wrong', LIVES, '.')
plant(CUDA + 'launch_order.c', 'replays_record_nothing',
      'error = @cudaGraphAddEventRecordNode(&order->record, capture->graph, &last, 1, order->serial)@;',
      '(order->record = last, 0)', 'wrong|error|hang', GRAPHS, '.')

plant(CUDA + 'suspend.c', 'suspended_under_graphs', 'if (@graphs_live(comm)@)', 'false', 'error',
      SUSPEND_GRAPHS, '.')
plant(CUDA + 'suspend.c', 'suspended_with_mappings', '@cuda_ipc_close(unused);@', '', 'error', SUSPEND_MAPPED,
      '.')
plant(CUDA + 'arena.c', 'shown_pieces_never_freed', 'serial != 0 && @piece->shown_to == serial@;', 'false',
      'error', SUSPEND_SHOWN, '.')
plant(CUDA + 'suspend.c', 'kept_ends_not_freed_when_all_have_left', '@cuda_conn_kept_sweep();@', '', 'error',
      SUSPEND_KEPT, '.')

BUDGET_C = CUDA + 'launch_budget.c'
plant(BUDGET_C, 'kernels_of_communicators_not_ordered', 'while (@needed > budget->blocks@ &&', 'false',
      'hang', CROWD)
plant(BUDGET_C, 'blocks_under_way_not_counted', 'rank_is_busy(comm, &busy)) needed += @busy.blocks@;', '0',
      'hang', CROWD)

plant(BUDGET_C, 'multiprocessors_of_no_use_to_clusters_not_counted', 'return @(cluster - 1) * DEVICE_PARTS@;',
      '0 * cluster', 'hang', CLUSTERS)

# ---- one-sided calls

PUTS = scenario('', '', '', 'TUTTI_EMU=mode=threads,devices=2 TUTTI_RACE_CHECK=0', program='rma')
plant(CUDA + 'rma.c', 'signal_overtakes_an_earlier_one',
      'if (error == 0) @error = end_await(end, key, stream)@;', 'error = 0', 'error|wrong|hang', PUTS, '.')
PUTS_DATA, PUTS_LATE = (
    scenario('', '', arguments, 'TUTTI_EMU=mode=threads,devices=2 TUTTI_RACE_CHECK=0', program='puts')
    for arguments in ('data', 'late'))
plant(CUDA + 'ipc_region.c', 'window_shown_at_its_second_use',
      'if (holds) cuda_region_check(comm, memory, bytes, @true@);', 'false', 'error', PUTS_DATA,
      'this process cannot map')
plant(CUDA + 'rma_remote.c', 'put_into_a_window_that_is_gone',
      '@cuda_guests_hold(comm, (uint64_t)(uintptr_t)call->out, call->out_bytes)@;', 'true',
      'crash|wrong|error', PUTS_LATE, '.')
COPIES = PUTS_DATA._replace(program='copies')
plant(CUDA + 'rma.c', 'collectives_wait_for_signals_of_the_program',
      '@signal_place(comm->config.rank_count, await->set, await->peer)@;', 'await->peer',
      'wrong|hang|error', COPIES, '.')
PUTS_LEFT = PUTS_DATA._replace(arguments='left', env=PUTS_DATA.env + ' TUTTI_STALL_SECONDS=1')
plant(CUDA + 'rma.c', 'waits_for_signals_not_told',
      '@needs_note(comm, call, awaits, await_count)@;', '(void)0', 'wrong|silence', PUTS_LEFT, '.')
