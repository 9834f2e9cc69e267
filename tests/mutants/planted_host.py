"""Bugs planted into the host's sources: bootstrap, shared memory and networks.

Each is one replacement in one source, which must make the named tests fail: `find` must occur exactly once in
`file` (runs of blanks and line ends count as one blank); `replace` takes its place. `tests` is the name of
one test of `program`, or a pattern of names (* and ?). Every run of all tests tries the quick ones.

Left out, because they do no harm: a receive that checks its deadline only when nothing has arrived
(sock.c: it ends with the next gap, or with the message); ranks that check in with another root than usual
(gather.c: all roots pass on); a link that is kept after its round (allgather.c: it ends with the gather);
a lost link that is not reported to the root (allgather.c: the root has lost the process as well, unless a
network is cut, which test_hosts.sh does); steps that rounding skips and that are freed late
(proxy_conn.c: a slice never needs them); a proxy service that is not woken for a post
(proxy.c: the launch wakes it)."""
from collections import namedtuple

Fault = namedtuple('Fault', 'name file find replace program tests quick')

FAULTS = []


def plant(file, name, find, replace, program, tests, quick=False):
    FAULTS.append(Fault(name, file, find, replace, program, tests, quick))


# ---- sockets and handshakes

SOCK, HANDSHAKE = 'lib/base/sock.c', 'lib/base/handshake.c'
plant(SOCK, 'port_in_the_hosts_order', 'kernel->four.sin_port = htons(address->port);',
      'kernel->four.sin_port = address->port;', 'test_sock', 'test_stream_ipv4')
plant(SOCK, 'descriptor_survives_exec', 'SOCK_NONBLOCK | SOCK_CLOEXEC); if (fd >= 0)',
      'SOCK_NONBLOCK); if (fd >= 0)', 'test_sock', 'test_options')
plant(SOCK, 'shortage_looks_like_nobody', 'shortage_log(cause); return -2;',
      'shortage_log(cause); return -1;', 'test_sock', 'test_out_of_descriptors')
plant(SOCK, 'failed_connect_leaks', 'else sock_close(made);', '', 'test_sock',
      'test_nobody_listens', quick=True)
plant(SOCK, 'one_try_too_few', '|| tries > retries)', '|| tries >= retries)', 'test_sock',
      'test_nobody_listens')
plant(SOCK, 'no_user_timeout', 'option_set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(seconds * 1000));', '',
      'test_sock', 'test_options')
plant(HANDSHAKE, 'proof_not_compared', 'if (!memeql_sec(proof, handshake->other, PROOF_BYTES))', 'if (false)',
      'test_handshake', 'test_wrong_secret', quick=True)
plant(HANDSHAKE, 'server_not_proved', 'return memeql_sec(proof, reply->proof, PROOF_BYTES);',
      'return proof[0] == proof[0];', 'test_handshake', 'test_impostors')
plant(HANDSHAKE, 'challenge_not_drawn', 'if (!os_random(head.nonce, sizeof head.nonce)) return false;',
      'memset(head.nonce, 1, sizeof head.nonce);', 'test_handshake', 'test_replay')
plant(HANDSHAKE, 'reply_not_in_the_proof', 'proved.welcome = answer.head.welcome;',
      'proved.welcome = 1;',
      'test_handshake',
      'test_turned_answer')
plant(HANDSHAKE, 'handshake_without_deadline',
      'if (os_time_ns() - handshake->begin_ns < HANDSHAKE_SECONDS * NS_PER_SECOND)', '', 'test_handshake',
      'test_late')
plant(HANDSHAKE, 'magic_waited_for', 'return handshake->phase != PHASE_HELLO ||', 'return true ||',
      'test_handshake',
      'test_strangers')
plant(HANDSHAKE, 'version_not_compared', 'if (hello.version != HANDSHAKE_VERSION)', 'if (false)',
      'test_handshake',
      'test_wrong_version')
plant(HANDSHAKE, 'sentences_of_strangers_in_the_log', 'client->refusal != REFUSAL_SAID || !is_proved)',
      'client->refusal != REFUSAL_SAID)', 'test_handshake', 'test_odd_servers')
plant(HANDSHAKE, 'lines_of_peers_in_the_log', 'text_clean((char *)client->reply, SENTENCE_BYTES);', '',
      'test_handshake', 'test_refused')

# ---- shared memory

SHARE, CONN_SHARE = 'lib/base/share.c', 'lib/backends/emu/conn_share.c'
ARENA, NET_END = 'lib/backends/emu/arena.c', 'lib/backends/emu/net_end.c'
plant(SHARE, 'any_user_may_map', 'same_user = who.uid == geteuid();', 'same_user = true;', 'test_share',
      'test_other_user', quick=True)
plant(SHARE, 'block_not_sealed', 'fcntl(block->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);',
      '', 'test_share', 'test_map')
plant(SHARE, 'size_of_a_block_not_compared', 'answer.bytes == ticket->bytes && *fd >= 0', '*fd >= 0',
      'test_share', 'test_nonsense')
plant(SHARE, 'mapped_descriptor_leaks', 'fetched_map(ticket, fd, mapped); close(fd);',
      'fetched_map(ticket, fd, mapped);', 'test_share', 'test_map')
plant(SHARE, 'second_user_not_counted', 'mapped->count += 1;', '', 'test_share', 'test_map')
plant(SHARE, 'child_writes_into_its_parents', 'MAP_PRIVATE | MAP_FIXED', 'MAP_SHARED | MAP_FIXED',
      'test_share', 'test_fork')
plant(SHARE, 'thread_ends_with_the_first_block', 'if (block->offered) return NULL;', ';', 'test_share',
      'test_*')
plant(SHARE, 'unasked_descriptor_kept', 'if (unasked >= 0) close(unasked);', '', 'test_share',
      'test_nonsense')
plant(CONN_SHARE, 'offset_not_checked', '&& handle->fifo <= bytes - handle->block_bytes - BLOCK_OFFSET', '',
      'test_share', 'test_bad_handles')
plant(CONN_SHARE, 'slots_not_compared', 'handle->slots == limits->slots &&', '', 'test_share',
      'test_bad_handles')
plant(CONN_SHARE, 'peer_shift_of_the_wrong_sign', '(uint64_t)(uintptr_t)memory - handle->base;',
      '(uint64_t)(uintptr_t)memory + handle->base;', 'test_processes', 'test_two_guarded')
plant(CONN_SHARE, 'mapping_kept_by_a_sender', 'share_unmap(conn->peer_memory, conn->peer_bytes);', '',
      'test_share', 'test_many_connections')
plant(CONN_SHARE, 'second_import_keeps_a_count', 'if (!used) share_unmap(memory, content.ticket.bytes);', '',
      'test_share', 'test_many_connections')
plant(ARENA, 'pin_not_given_back', 'if (arena.pin_count > 0) arena.pin_count -= 1;', '', 'test_share',
      'test_map')
plant(ARENA, 'child_uses_its_parents_arena', '|| arena.pid != os_pid()) return false;', ') return false;',
      'test_share', 'test_arena_fork')
plant(ARENA, 'freed_pages_stay', 'share_trim(arena.memory, span->offset, span->bytes);', '', 'test_share',
      'test_small_arena')
plant(ARENA, 'gap_behind_the_wrong_span', 'end = span->offset + span->bytes; previous = span;',
      'end = span->offset + span->bytes;', 'test_share', 'test_small_arena')
plant(NET_END, 'lane_not_woken', 'if (lane != NULL) emu_actor_wake(&lane->actor);', '(void)lane;',
      'test_proxy', 'over_the_emulators_network')

# ---- the log's last error

plant('lib/base/log.c', 'echoes_hide_urgent_errors',
      'if (urgent || !thread_gathers_evidence || !last_is_urgent) {', 'if (true) {',
      'test_base', 'test_log_evidence')
plant('lib/base/log.c', 'urgent_errors_stay', 'last_is_urgent = urgent;',
      'last_is_urgent |= urgent;',
      'test_base', 'test_log_evidence')

# ---- settings

PARAM, PARAM_TEXT = 'lib/base/param.c', 'lib/base/param_text.c'
plant(PARAM, 'wrong_settings_are_let_in', 'if (first_refused == FAULT_LIMIT) return ncclSuccess;',
      'if (true) return ncclSuccess;', 'test_base', 'test_param_check')
plant(PARAM, 'refusal_only_once', 'return ncclInvalidUsage;', 'return said ? ncclSuccess : ncclInvalidUsage;',
      'test_base', 'test_param_check')
plant(PARAM, 'late_faults_are_forgotten',
      'if (index >= FAULT_LIMIT && (kind != PARAM_FAULT_REFUSED || first_refused < FAULT_LIMIT)) return;',
      'if (index >= FAULT_LIMIT) return;', 'test_base', 'test_param_check_last')
plant(PARAM_TEXT, 'seed_with_a_sign', "text[0] >= '0' && text[0] <= '9' && *end", '*end', 'test_base',
      'test_param_check')
plant(PARAM_TEXT, 'folder_is_a_file', 'if (is_folder(path)) {', 'if (false) {', 'test_base',
      'test_param_check')

# ---- bootstrap: launchers, unique ids, the control server, the gather

LAUNCH, ROOT_FORWARD = 'lib/base/launch.c', 'lib/core/bootstrap/root_forward.c'
CONTROL, BOOTSTRAP = 'lib/core/bootstrap/control.c', 'lib/core/bootstrap/bootstrap.c'
ROOT, GATHER = 'lib/core/bootstrap/root.c', 'lib/core/bootstrap/gather.c'
ALLGATHER, WATCH = 'lib/core/bootstrap/allgather.c', 'lib/core/bootstrap/watch.c'
WIRE = 'lib/core/bootstrap/wire.c'
TEXT = 'lib/base/text.c'
plant(LAUNCH, 'restart_is_the_same_job', '"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",',
      '"TORCHELASTIC_RUN_ID",', 'test_launch', 'test_jobs')
plant(LAUNCH, 'job_text_without_its_end', 'hash_bytes(hash, text, strlen(text) + 1)',
      'hash_bytes(hash, text, strlen(text))', 'test_launch', 'test_jobs')
plant(LAUNCH, 'rank_may_be_the_count', '0, launch->rank_count - 1, &launch->rank)',
      '0, launch->rank_count, &launch->rank)', 'test_launch', 'test_*')
plant(LAUNCH, 'port_beyond_the_last', 'port + MASTER_PORT_OFFSET < 65536', 'port < 65536', 'test_launch',
      'test_*')
plant(LAUNCH, 'node_off_by_one', 'if (index < times) return (int)tasks;',
      'if (index <= times) return (int)tasks;', 'test_launch', 'test_lists')
plant(CONTROL, 'silence_forgiven',
      'if (conn->beats && silence > 0 && now_ns > conn->received_ns + silence) {',
      'if (false) {', 'test_gather', 'test_watch_stop')
plant(CONTROL, 'beats_not_sent', 'control_send(conn, FRAME_BEAT, NULL, 0, NULL, 0);', ';', 'test_gather',
      'test_watch_patience')
plant(CONTROL, 'length_not_checked', 'return limit != CONTROL_UNKNOWN && conn->head.bytes <= limit;',
      'return limit != CONTROL_UNKNOWN;', 'test_control', 'test_nonsense', quick=True)
plant(CONTROL, 'sent_bytes_not_counted', 'conn->out_begin += (size_t)moved;',
      'conn->out_begin += moved > 0 && 0;', 'test_gather', 'test_meets')
plant(CONTROL, 'shortage_drops_nobody', 'dropped < ACCEPTS_AT_ONCE && server.handshakes.first; dropped++',
      'dropped < 0 && server.handshakes.first; dropped++', 'test_control', 'test_shortage')
plant(CONTROL, 'dropped_connection_not_closed', 'sock_close(conn->fd); conn->fd = -1;', 'conn->fd = -1;',
      'test_control', 'test_half')
plant(CONTROL, 'body_kept_after_a_frame', 'conn->head_bytes = conn->body_bytes = 0;', 'conn->head_bytes = 0;',
      'test_control', 'test_call_many')
plant(BOOTSTRAP, 'version_of_an_id_not_compared', 'if (content.version != NCCL_VERSION_CODE) {',
      'if (false) {', 'test_bootstrap', 'test_ids')
plant(BOOTSTRAP, 'dropped_id_holds_the_server', 'inside this process alone"); control_leave(); }',
      'inside this process alone"); }', 'test_bootstrap', 'test_many_ids')
plant(BOOTSTRAP, 'held_root_holds_the_server',
      'id_register(&id->secret, id->lasting, id->local); control_leave();',
      'id_register(&id->secret, id->lasting, id->local);', 'test_bootstrap', 'test_comm_id')
plant(ROOT, 'rank_twice_not_seen', 'if (root->ranks[rank]) {', 'if (root->ranks[rank] && false) {',
      'test_gather', 'test_contradictions')
plant(ROOT, 'count_not_compared', '} else if (said->rank_count != root->rank_count) {', '} else if (false) {',
      'test_gather', 'test_contradictions')
plant(ROOT, 'signature_not_compared', '} else if (said->signature != root->signature) {',
      '} else if (false) {', 'test_gather', 'test_contradictions')
plant(ROOT, 'failure_told_to_the_first_alone',
      'root_send_all(root, FRAME_FAIL, &fail, sizeof fail, root->reason);',
      'if (root->process_count > 0) root_process_refuse(root->processes[0], code, root->reason);',
      'test_gather',
      'test_contradictions')
plant(ROOT, 'missing_rank_not_named',
      'for (uint32_t i = 0; i < root->rank_count; i++) taken[i] = root->ranks[i] != 0;', '', 'test_gather',
      'test_missing')
plant(ROOT, 'first_bad_outcome_wins', '|| process->number < root->agree_process)',
      '&& process->number < root->agree_process)', 'test_gather', 'test_agreement', quick=True)
plant(ROOT, 'outcomes_not_counted_anew', 'root->agree_count = 0;', '', 'test_gather', 'test_meets')
plant(ROOT, 'wrong_peer_named', '(process->number + root->process_count - distance) % root->process_count;',
      '(process->number + distance) % root->process_count;', 'test_gather', 'test_meets', quick=True)
plant(ROOT_FORWARD, 'answer_to_every_process',
      'if (process->about.uid != forward.uid || !process->conn) continue;',
      'if (!process->conn) continue;', 'test_bootstrap', 'test_several_roots')
plant(ROOT_FORWARD, 'early_processes_not_passed_on',
      'control_send(root->up, FRAME_FORWARD, NULL, 0, at_byte + sizeof head, head.bytes);', '',
      'test_bootstrap', 'test_several_roots')
plant(GATHER, 'ranks_sent_twice', 'gather->sent_count = gather->own_count;', '', 'test_gather',
      'test_ranks_come_late')
plant(GATHER, 'cancel_not_told', 'if (result != ncclSuccess) root_report(gather);', '', 'test_gather',
      'test_cancel_early')
plant(GATHER, 'goodbye_not_retried', 'if (gather->fixed && !why && !gather->rostered) {', 'if (false) {',
      'test_bootstrap', 'test_in_a_row')
plant(ALLGATHER, 'round_sends_too_much', 'return distance < rest ? distance : rest;',
      'return distance < rest ? distance : distance;', 'test_gather', 'test_meets')
plant(ALLGATHER, 'padding_left_out', 'info.bytes + wire_padding(info.bytes))) return false;',
      'info.bytes)) return false;', 'test_gather', 'test_meets', quick=True)
plant(WATCH, 'news_not_passed_on', 'watch_pass(watch, news, from);', '', 'test_gather', 'test_watch_fail')
plant(WATCH, 'listener_not_told', 'news->due = about->process_index != watch->process_index;',
      'news->due = false;',
      'test_gather', 'test_watch_fail')
plant(TEXT, 'controls_in_a_text', "if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';", '',
      'test_gather', 'test_texts')
plant(WIRE, 'range_one_too_short', 'while (i + 1 < rank_count &&', 'while (i + 2 < rank_count &&',
      'test_gather', 'test_missing')

# ---- proxies, rails and networks

PROXY, PROXY_CONN = 'lib/core/proxy/proxy.c', 'lib/core/proxy/proxy_conn.c'
PROXY_OPS = 'lib/core/proxy/proxy_ops.c'
TRANSFER, RAILS = 'lib/schedule/transfer.h', 'lib/core/topology/rails.c'
REMOTE = 'lib/core/remote/remote.c'
plant(PROXY_CONN, 'number_of_a_message_not_checked', 'if (trailer.message != conn->n_received) {',
      'if (false) {', 'test_proxy', 'a_fault_is_named', quick=True)
plant(PROXY_CONN, 'bytes_of_the_operation_not_compared', 'trailer.agreed_bytes == slice->agreed_bytes &&', '',
      'test_proxy', 'sizes_that_differ_are_named')
plant(PROXY_CONN, 'message_not_checked',
      'if (!skipped && !recv_agree(conn, flight, bytes, zero_copy)) return false;', '', 'test_proxy',
      'a_fault_is_named')
plant(PROXY_CONN, 'zero_copy_data_not_kept', 'if (zero_copy->data != NULL) memcpy(', 'if (false) memcpy(',
      'test_proxy', 'a_kernel_that_ended_sends_no_zero_copy')
plant(PROXY_CONN, 'unsettled_behind_a_kernel', 'if (!conn->direct) return;', 'return;', 'test_proxy',
      'a_kernel_that_*', quick=True)
plant(PROXY_CONN, 'sent_before_it_is_there', 'conn->end.tail) >= flight->slice.end;',
      'conn->end.tail) >= flight->slice.begin;', 'test_proxy', 'every_option_comes_out_exact', quick=True)
plant(PROXY_CONN, 'empty_ll_steps_rewrite_nothing',
      'proxy_ll_put(conn, flight); /* also for an empty',
      'if (slice->bytes > 0) proxy_ll_put(conn, flight); /* also for an empty', 'test_proxy',
      'no_old_line_counts')
plant('lib/backends/emu/net_end.c', 'll_slots_are_not_rewritten',
      'if (line_cleans_at(step->line, step->flag_bits, conn->slots))', 'if (false)', 'test_proxy',
      'no_old_line_counts', quick=True)
plant('lib/backends/emu/net_end.c', 'll_taken_when_one_line_is_there', 'lines, net_line_count(step),',
      'lines, 1,', 'test_proxy', 'every_option_comes_out_exact', quick=True)
plant(TRANSFER, 'empty_ll_steps_are_messages_at_one_end',
      '|| transfer->ll); /* whose', '|| (transfer->ll && link->sends)); /* whose', 'test_proxy',
      'every_option_comes_out_exact')
plant('lib/backends/emu/block.c', 'll_messages_lie_in_shared_slots',
      'if (!conn->pooled || work->proto == PROTO_LL) return;', 'if (!conn->pooled) return;', 'test_proxy',
      'messages_change_their_protocol')
plant('lib/core/proxy/proxy.c', 'slots_unknown_behind_ll',
      'conn->end.step_bytes != 0)) return ncclSuccess;', 'true)) return ncclSuccess;',
      'test_proxy', 'messages_change_their_protocol', quick=True)
plant('lib/core/plan/plan_p2p.c', 'message_over_a_network_over_ll_however_long',
      'return bytes <= size_min(most, tune_net_message_bytes(request));', 'return bytes <= most;',
      'test_plan', 'test_messages_over_networks', quick=True)
plant('lib/core/plan/plan_p2p.c', 'll_over_a_network_is_spread',
      'if (peer_is_remote(request, op->peer)) return p2p_split_of(bytes, 1);', '', 'test_plan',
      'test_messages_over_networks')
plant(PROXY_CONN, 'registration_kept',
      'net->unregister_memory(conn->connection, conn->registrations[i]);', ';',
      'test_proxy', 'an_abort_leaves_nothing')
plant(PROXY_CONN, 'sender_not_closed', 'conn->name.sends) net->close_send(conn->connection);',
      'conn->name.sends) (void)0;', 'test_proxy', 'an_abort_leaves_nothing')
plant(PROXY_CONN, 'error_of_the_network_swallowed', 'proxy_comm_fail(conn->comm, result, "%s rank',
      'proxy_comm_fail(conn->comm, ncclInternalError, "%s rank', 'test_proxy', 'every_call_may_fail')
plant(PROXY_CONN, 'slots_taken_out_of_turn',
      'if (task->set != NULL && task->set->first != task) return false;', '', 'test_proxy',
      'messages_share_slots', quick=True)
plant(PROXY_CONN, 'leave_beyond_what_is_posted', 'conn->end.pooled ? conn->steps.posted - conn->end.slots',
      'conn->end.pooled ? conn->steps.posted', 'test_proxy', 'messages_share_slots')
plant(PROXY_OPS, 'every_message_has_the_first_set',
      'backend_slots_key(name->channel_index, place, name->sends));',
      'backend_slots_key(name->channel_index, place & 1, name->sends));', 'test_faults', 'test_guarded')
plant('lib/core/proxy/proxy_watch.c', 'naps_of_a_fifth_of_a_core', '#define SHARE 25u', '#define SHARE 5u',
      'test_proxy', 'naps_are_as_short_as_their_cost_allows')
plant(PROXY, 'late_kernels_not_watched', 'if (state == ENGINE_WAITS && waiting > 0)', 'if (false)',
      'test_proxy', 'kernels_that_begin_late_are_watched', quick=True)
plant(PROXY_CONN, 'unread_data_not_watched', 'return conn->n_done < conn->n_transmitted && conn->comm',
      'return false && conn->comm', 'test_proxy', 'kernels_that_begin_late_are_watched')

PLAN_CACHE = 'lib/core/plan/plan_cache.c'
plant(PLAN_CACHE, 'outputs_of_a_group_not_compared', 'named->in = ops[i].in, named->out = ops[i].out;',
      'named->in = ops[i].in;', 'test_plan_cache', 'test_groups', quick=True)
plant(PLAN_CACHE, 'group_cached_at_once', '|| group_is_repeated(*cache);', '|| true;', 'test_plan_cache',
      'test_groups')
plant(PLAN_CACHE, 'addresses_taken_for_names', 'if (addresses) return;', '', 'test_plan_cache', 'test_groups')

PXN, PXN_CLIENT = 'lib/core/proxy/proxy_pxn.c', 'lib/core/proxy/proxy_pxn_client.c'
plant(PXN, 'slices_not_checked', 'if (!slice_is_sane(conn, &slice)) {', 'if (false) {', 'test_proxy',
      'pxn_takes_no_nonsense', quick=True)
plant(PXN, 'note_of_another_slice', 'pxn->block->slices[pxn->taken % PROXY_SLICES_MAX];',
      'pxn->block->slices[0];', 'test_proxy', 'pxn_carries_every_collective')
plant(PXN, 'failure_of_pxn_not_reported',
      '__atomic_store_n(&block->failed, (uint32_t)comm->code, __ATOMIC_RELEASE);', '', 'test_proxy',
      'a_pxn_proxy_that_is_given_up_is_told')
plant(PXN, 'pxn_of_another_communicator_ends',
      'if (pxn->comm.call.comm_key != comm_key || pxn->over', 'if (pxn->over', 'test_proxy',
      'a_pxn_proxy_that_is_given_up_is_told')
plant(PXN, 'pxn_made_twice', 'if (found != NULL) *handle = found->handle;', 'found = NULL;', 'test_proxy',
      'a_pxn_proxy_is_made_once')
plant(PXN, 'pxn_never_ends',
      'if (__atomic_load_n(&block->left, __ATOMIC_SEQ_CST) != 0) return true;', '', 'test_proxy',
      'pxn_carries_every_collective')
plant(PXN_CLIENT, 'route_not_named', '"through rank %" PRIu32 ", device %" PRIu32 ": %s", conn->over,',
      '"rank %" PRIu32 ", device %" PRIu32 ": %s", conn->over,', 'test_proxy', 'pxn_names_what_fails')
plant('lib/core/remote/remote_pxn.c', 'sends_for_whoever_asks',
      'remote_transport_to(remote, question->over, question->rank) == TRANSPORT_SHARED &&', '',
      'test_pxn_call',
      'test_nonsense')
plant('lib/core/remote/remote_pxn.c', 'pxn_of_a_receive', '&& question->name.sends;', ';', 'test_pxn_call',
      'test_nonsense')
plant(PROXY, 'failure_told_twice', 'comm->reported = comm->reporting = true;', 'comm->reporting = true;',
      'test_proxy', 'a_fault_is_named')
plant(PROXY_OPS, 'left_operations_leak',
      'ops_unlist(ops); ops->previous = ops->next = NULL; if (ops->freed) ops_release(ops);',
      'ops_unlist(ops); ops->previous = ops->next = NULL;', 'test_proxy', 'an_abort_leaves_nothing')
plant(PROXY_OPS, 'number_of_the_first_operation_lost', 'ops->works[i].op_sequence += plan->first_sequence;',
      ';', 'test_proxy', 'a_fault_is_named')
plant(TRANSFER, 'step_not_rounded', 'link->next_step = slice_first_step(saved_step, work->chunk_steps);',
      'link->next_step = saved_step;',
      'test_proxy', 'every_option_comes_out_exact')
plant(TRANSFER, 'slice_past_the_chunk', 'slice_length(link->held, offset, link->slice_elements)',
      '(link->sends ? link->slice_elements : slice_length(link->held, offset, link->slice_elements))',
      'test_proxy', 'every_option_comes_out_exact')
plant(RAILS, 'one_nic_for_all_channels', 'channel_index % alike', '0 % alike', 'test_rails',
      'channels_spread_over_nics')
plant(RAILS, 'gpu_of_another_process', 'gpu != ask->gpu && ask->here[gpu] &&', 'gpu != ask->gpu &&',
      'test_rails', 'nobody_beside_the_nic_is_no_route')
plant(RAILS, 'receivers_rail_ignored', 'net_of_channel(ask, ask->peer_gpu);',
      'net_of_channel(ask, ask->gpu);', 'test_rails', 'messages_take_the_receivers_rail')
plant(RAILS, 'unused_nics_count', 'reach->path == nearest || reach->path <= GRAPH_PXB;', 'true;',
      'test_rails', 'levels_keep_nics_from_memory', quick=True)
plant(RAILS, 'nics_of_other_gpus_taken_for_unused',
      '(pxn_level() > 0 && gpu_beside(&ask, net) != TOPOLOGY_NONE)', 'false', 'test_rails',
      'levels_keep_nics_from_memory')
plant(RAILS, 'c2c_is_no_short_path', 'param_int(PARAM_NET_GDR_C2C) != 0 ? GRAPH_P2C : GRAPH_PXB', 'GRAPH_PXB',
      'test_rails', 'default_level', quick=True)
plant('lib/core/proxy/proxy_device.c', 'level_of_gpudirect_ignored',
      'all = all && pair.access != NULL && pair.near;', 'all = all && pair.access != NULL;', 'test_ibv_run',
      'test_device_slots')
plant('lib/core/settings/settings.c', 'links_that_fail_are_passed_over',
      'const ncclResult_t result = ops->device->path(from, to, &info);',
      'ncclResult_t result = ops->device->path(from, to, &info); result = ncclSuccess;',
      'test_topology', 'test_paths')
plant('lib/core/remote/reach.c', 'links_of_other_hosts_are_checked',
      'if (process_index == view->own_process || !same_host(view, process_index, view->own_process))',
      'if (process_index == view->own_process)', 'test_reach', 'test_links_disabled')
plant('lib/core/remote/reach.c', 'links_are_not_checked',
      'if (result == ncclSuccess) result = links_check(&view);', '', 'test_reach',
      'test_links_disabled', quick=True)
GRAPH_FILE = 'lib/core/topology/graph_file.c'
plant(GRAPH_FILE, 'gpus_may_be_missing', 'if (at == count)', 'if (at > count)', 'test_graph_file',
      'wrong_files_are_refused', quick=True)
plant(GRAPH_FILE, 'gpus_not_used_are_kept', 'if (request->gpus[place] == gpu) chain[count++] = place;',
      'if (request->gpus[place] == gpu || place == 0) chain[count++] = place;', 'test_graph_file',
      'a_file_is_followed')
plant(GRAPH_FILE, 'rings_for_trees', 'request->pattern == SEARCH_RING ? RINGS : TREES', 'RINGS',
      'test_graph_file', 'trees_are_followed', quick=True)
plant(GRAPH_FILE, 'unknown_elements_end_the_graph', 'reader->skipping -= 1;', 'reader->skipping = 0;',
      'test_graph_file', 'trees_are_followed')
DEVICE_SLOTS = 'lib/core/proxy/proxy_device.c'
plant(DEVICE_SLOTS, 'refusals_of_nics_ignored', 'if (uses) all = false;', 'if (uses) all = true;',
      'test_device_slots', 'all_nics_must_accept', quick=True)
plant(DEVICE_SLOTS, 'trials_are_not_kept', 'trials = trial;', '', 'test_device_slots',
      'each_pair_is_tried_once', quick=True)
plant(DEVICE_SLOTS, 'trial_of_another_gpu_taken', 'trial->device_index != comm->call.device_index', 'false',
      'test_device_slots', 'each_pair_is_tried_once')
plant(DEVICE_SLOTS, 'nvidia_peermem_not_tried', 'if (error != 0 && properties.memory_cuda)',
      'if (error < 0 && properties.memory_cuda)', 'test_device_slots', 'every_way_is_tried')
plant(RAILS, 'more_nics_than_the_policy_allows', 'ask->nets_most < alike) alike = ask->nets_most;',
      'ask->nets_most < alike) alike += 0;', 'test_rails', 'channels_spread_over_nics', quick=True)
SHAPE, LAYOUT = 'lib/core/topology/shape.c', 'lib/core/topology/layout.c'
plant(SHAPE, 'number_of_nvlinks_not_in_the_shape', 'word_put(&word, 11, link->count);',
      'word_put(&word, 11, 1);', 'test_shape', 'what_decides_changes_the_digest', quick=True)
plant(SHAPE, 'parent_of_a_recorded_row_not_checked',
      'if (parent >= topology->device_count) return false;', '', 'test_shape', 'nonsense_is_refused')
plant(SHAPE, 'peers_of_nvlinks_not_in_the_shape', 'ends == LINK_GPU ? link->peer : 0);', '0);', 'test_shape',
      'words_give_the_graph')
plant(LAYOUT, 'settings_of_paths_not_compared',
      'digest = hash_mix(hash_mix(digest, origin.cross_nic), origin.peer_level);', '', 'test_shape',
      'what_decides_changes_the_digest')
plant(REMOTE, 'failure_kept_from_its_ranks',
      'if (shared->device_comms[rank]) comm->ops->device->comm_fail(shared->device_comms[rank], code);', ';',
      'test_faults', '*guarded')
REACH = 'lib/core/remote/reach.c'
plant(REACH, 'other_hosts_are_tried',
      'info_of(view, a)->host == info_of(view, b)->host;', 'view->process_count > 0;', 'test_reach',
      'test_hosts')
plant(REACH, 'always_oneself_is_apart', 'failed == 1 && tried > 1 ? failure->peer : view->own_process;',
      'view->own_process;', 'test_reach', 'test_one_apart', quick=True)
plant(REACH, 'all_of_many_are_tried', 'count <= ALL_TRIED_MOST + 1 ||', 'count > 0 ||', 'test_reach',
      'test_many')
plant(REACH, 'hosts_never_given_up', ': turns >= TURNS_MOST;', ': false;', 'test_reach', 'test_hosts')
plant(REACH, 'pairs_are_everybody', 'failure->about.detail = replaced ? places : EVERYBODY;',
      'failure->about.detail = EVERYBODY;', 'test_reach', 'test_pairs', quick=True)
plant(REACH, 'memory_of_the_host_tried_for_all',
      'return view->memory == REACH_DEVICE || !both_offer(view, a, b, REACH_DEVICE) ||', 'return true ||',
      'test_reach', 'test_pairs')
plant(REACH, 'one_end_alone_denies',
      '(one->denied[memory] >> other->place | other->denied[memory] >> one->place)',
      '(one->denied[memory] >> other->place)', 'test_reach', 'test_pairs')
plant(REACH, 'nothing_replaces_the_hosts_memory',
      '_DEVICE && both_offer(view, view->own_process, processes[i], REACH_HOST);', '_DEVICE;', 'test_reach',
      'test_no_pages')
plant('lib/core/bootstrap/gather.c', 'details_of_failures_lost',
      'gather->agree_detail = agreement.detail;', '', 'test_reach', 'test_pairs')
IPC_HANDLE = 'lib/backends/cuda/ipc_handle.c'
plant(IPC_HANDLE, 'either_memory_will_do', 'ipc_piece_on_host(piece) == on_host && (!on_host ||',
      '(!on_host ||', 'test_ipc', 'test_host_conns')
plant(IPC_HANDLE, 'pieces_beyond_their_tickets', 'ticket.bytes >= piece->bytes', 'ticket.bytes > 0',
      'test_ipc', 'test_host_conns')
plant(ROOT, 'failure_about_the_speaker',
      'root->agree_about = said.process_index < root->process_count ? said.process_index : process->number;',
      'root->agree_about = process->number;', 'test_reach', 'test_one_apart')
plant(REMOTE, 'ranks_of_all_nodes_share', 'if (a->process_index == b->process_index) return one_node;',
      'if (a->process_index == b->process_index) return true;', 'test_faults', '*')

# ---- the socket net

FRAME, SEND, RECEIVE = ('lib/backends/socket/%s.c' % name for name in ('frame', 'send', 'receive'))
IO_THREADS, PORT, DIAL = ('lib/backends/socket/%s.c' % name for name in ('io_threads', 'port', 'dial'))
plant(FRAME, 'number_of_a_frame_not_checked', 'if (read.number != number) return "a frame out of its turn";',
      '', 'test_socket_net', 'test_frames')
plant(FRAME, 'last_piece_left_out', '(rest + cut.task_bytes - 1) / cut.task_bytes', 'rest / cut.task_bytes',
      'test_socket_net', '*striped')
plant(FRAME, 'key_of_the_communicator_ignored', 'endpoint->number ^ (comm_key * HASH_STEP)',
      'endpoint->number ^ (comm_key & 0)', 'test_socket_net', '*wrong_key')
plant(SEND, 'long_message_sent', 'messages_ahead(sender) < 0 && bytes > *place',
      'messages_ahead(sender) < 0 && false', 'test_socket_net', '*too_long')
plant(SEND, 'credit_not_waited_for', 'return sender->credits_read == 0 ||',
      'return false && sender->credits_read == 0 ||', 'test_socket_net', '*credit_first')
plant(SEND, 'offset_in_a_message_lost', 'request_spans(request, data_skip, rest,',
      'request_spans(request, 0, rest,', 'test_socket_net', 'test_one_socket', quick=True)
plant(RECEIVE, 'other_length_comes_in_two_parts',
      'if (frame.bytes != request->whole_bytes) request->first_bytes = 0;', '', 'test_socket_net',
      'test_parts')
plant(SEND, 'credit_socket_leaks',
      'sock_close(sender->writable); sock_close(end->stream); sock_close(end->credit);',
      'sock_close(sender->writable); sock_close(end->stream);', 'test_socket_net', '*one_socket')
plant(RECEIVE, 'end_of_stream_waited_out', 'if (got <= 0) return end_fail_errno(end, got == 0 ? -1 : errno);',
      'if (got < 0) return end_fail_errno(end, errno);', 'test_socket_net', '*killed')
plant(RECEIVE, 'frame_read_twice', 'receiver->ahead_begin += FRAME_BYTES;', '', 'test_socket_net',
      '*one_socket')
plant(RECEIVE, 'length_of_a_message_not_checked', '|| frame.bytes > request->bytes) {', ') {',
      'test_socket_net', '*too_long_ahead')
plant(IO_THREADS, 'piece_counted_twice',
      'atomic_fetch_sub_explicit(&request->tasks, 1, memory_order_release);',
      'atomic_fetch_sub_explicit(&request->tasks, 2, memory_order_release);', 'test_socket_net', '*striped')
plant(IO_THREADS, 'data_sockets_not_closed', 'sock_close(io->data_sockets[i].fd); os_free(io->members);',
      '; os_free(io->members);', 'test_socket_net', '*striped')
plant(PORT, 'stranger_is_accepted',
      'const bool accepted = handshake_answer(guest, refusal) && refusal == NULL;',
      'const bool accepted = handshake_answer(guest, refusal) && listener != NULL;', 'test_socket_net',
      'test_guests', quick=True)
plant(PORT, 'untaken_connection_counts_on', 'if (listener->complete && !listener->claimed) ready_take(port);',
      '', 'test_socket_net', 'test_untaken')
plant(DIAL, 'dials_leak', 'for (uint32_t i = 0; i < dials->count; i++) sock_close(dials->dials[i].fd);', '',
      'test_socket_net', '*')

# ---- network plugins

ADAPT, LOAD = 'lib/backends/plugin/adapt.c', 'lib/backends/plugin/load.c'
plant(ADAPT, 'next_message_before_a_last_part', 'if (end->unposted == NULL) *place = request_take(end);',
      '*place = request_take(end);', 'test_plugin', 'test_parts')
plant(ADAPT, 'size_of_the_last_part_alone', 'mine->bytes += (size_t)size;', 'mine->bytes = (size_t)size;',
      'test_plugin', 'test_parts')
plant('lib/backends/plugin/versions.c', 'registered_bytes_of_old_plugins_cut', 'if (bytes > INT_MAX)',
      'if (false)', 'test_plugin', 'test_large_memory')
plant('lib/backends/plugin/versions.c', 'properties_of_version_8_read_as_of_7', 'plugin->version == 8 ?',
      'false ?', 'test_plugin', 'test_versions')
plant(LOAD, 'oldest_version_first', 'for (int version = ABI_NEWEST; version >= ABI_OLDEST; version--)',
      'for (int version = ABI_OLDEST; version < ABI_NEWEST; version++)', 'test_plugin', 'test_versions')
plant(LOAD, 'fault_net_table_taken', 'if (fault == NULL) {', 'if (fault != NULL || net != NULL) {',
      'test_plugin', 'test_broken')
plant(ADAPT, 'context_of_an_accept_not_counted', 'if (end->context != NULL) end->context->use_count += 1;',
      '', 'test_plugin', 'test_versions', quick=True)
plant(ADAPT, 'request_not_given_back', 'mine->end = NULL; *done = true;', '*done = true;', 'test_plugin',
      'test_versions')
plant(ADAPT, 'negative_size_taken', 'if (sizes[i] < 0)', 'if (sizes[i] < -1000000)', 'test_plugin',
      'test_offences')
plant(ADAPT, 'context_of_another_communicator', 'if (known->key == peer->comm_key) { *context = known;',
      'if (known != NULL) { *context = known;', 'test_plugin', 'test_given_up')
plant(ADAPT, 'memory_kind_not_asked', '|| (theirs.device.memory & ABI_MEMORY_HOST) == 0)', ')', 'test_plugin',
      '*')

# ---- the call cache

CALL_CACHE, GROUP = 'lib/core/comm/call_cache.c', 'lib/core/group.c'
plant(CALL_CACHE, 'longer_group_taken',
      'cache->path->call_count == count ? cache->path : find_path(cache, NULL)',
      'cache->path', 'test_call_cache', 'test_long')
plant(CALL_CACHE, 'calls_of_a_loop_replace_each_other', 'cache->next = (cache->next + 1) % CALL_CACHE_CALLS;',
      'cache->next = (uint32_t)(hash >> 61);', 'test_call_cache', 'test_loop')
plant(CALL_CACHE, 'other_output_taken', 'args->out == call->out &&', '', 'test_call_cache', 'test_paths')
plant(CALL_CACHE, 'followed_after_others', 'cache->noted == 0 ? find_path(cache, call)',
      'cache != NULL ? find_path(cache, call)', 'test_call_cache', 'test_paths')
plant(GROUP, 'followed_calls_forgotten', 'TRY(group_unfollow(comms));', '', 'test_call_cache', 'test_*',
      quick=True)

# ---- InfiniBand

IBV = 'lib/backends/ibv/'
plant(IBV + 'flush.c', 'device_memory_is_not_flushed', 'if (last == UINT32_MAX) return ncclSuccess;',
      'return ncclSuccess;', 'test_ibv', 'test_device_memory')
plant(IBV + 'reconnect.c', 'finished_calls_are_repeated',
      '(uint64_t)(end->answers[k % IB_SLOTS].outstanding == 0) << k % IB_SLOTS', '0', 'test_ibv',
      'test_reconnect')
plant(IBV + 'reconnect.c', 'entries_are_not_reannounced', ': ib_receive_reannounce(end)', ': ncclSuccess',
      'test_ibv', 'test_reconnect')
plant('lib/core/proxy/proxy_conn.c', 'slots_in_device_memory_are_not_flushed',
      'if (conn->end.memory != POINTER_DEVICE || !conn->comm->flushes || skipped || flight->slice.ll)',
      'return true;', 'test_ibv_run',
      'test_device_slots', quick=True)
plant('lib/core/proxy/proxy_memory.c', 'memory_of_nccl_is_not_offered',
      'if (announced == NULL) announced = memory_find(offered, data, bytes);', '', 'test_ibv_run',
      'test_registered')
plant(IBV + 'ports.c', 'ports_that_came_back_stay_left', 'back |= port_bits(end, i) & end->own.bad;', '',
      'test_ibv', 'test_reconnect')
plant(IBV + 'silence.c', 'silent_queue_pairs_are_left_alone', 'limit_ns > 0 && ', 'limit_ns == 0 && ',
      'test_ibv_wires', 'test_forgotten')
plant(IBV + 'silence.c', 'stops_are_forgiven_for_ever', ' && !qp->probed) qp->received_ns',
      ') qp->received_ns', 'test_ibv_wires', 'test_silence_seldom')
plant(IBV + 'reconnect.c', 'parts_of_words_are_taken_for_words', 'end->asked = true, end->wire.received = 0;',
      'end->asked = true;', 'test_ibv_wires', 'test_wires')
plant('lib/core/proxy/proxy_progress_idle.c', 'idle_connections_are_not_looked_at',
      'due && conn->idle_look == NET_LOOK_LATER',
      'false', 'test_ibv_run', 'test_reconnect')
plant('lib/backends/emu/net_end.c', 'zero_copy_memory_is_not_waited_for',
      '__atomic_load_n(&direct->holds, __ATOMIC_RELAXED) == 0', 'true', 'test_ibv_run', 'test_registered')

# ---- memory of programs that other processes map

REGION = 'lib/backends/cuda/region.c'
plant(REGION, 'neighbour_of_a_retired_piece_stays', 'if (each->beside == region) each->beside = NULL;', ';',
      'test_ipc', 'test_pieces')
plant(REGION, 'pieces_that_are_mapped_elsewhere_taken', 'if (!first && found != *shift) return false;', '',
      'test_ipc', 'test_pieces', quick=True)
plant(REGION, 'only_the_first_piece_is_looked_at',
      'if (address + bytes <= region->base + region->bytes) return true;',
      'if (address <= region->base + region->bytes) return true;', 'test_ipc', 'test_pieces')
plant(REGION, 'regions_are_retired_in_secret', 'regions->generation += 1;', '', 'test_ipc', 'test_decided')
plant(REGION, 'open_answer_taken_for_the_last', 'return !open;', 'return true;', 'test_ipc', 'test_decided')
plant(REGION, 'repeated_use_is_no_use', 'if (region != NULL) region->idle_looks = 0;', '(void)region;',
      'test_ipc', 'test_recalled')
plant(REGION, 'later_is_taken_for_never', 'region->answers[peer] = REGION_UNASKED; return;',
      'region->answers[peer] = REGION_REFUSED; return;', 'test_ipc', 'test_later')
plant(REGION, 'pieces_displace_other_memory', 'region->is_piece == piece) last = region;',
      'true) last = region;', 'test_ipc', 'test_pieces_pushed_out')
plant(REGION, 'windows_are_asked_back', 'mapped && region->windows == 0 &&', 'mapped &&', 'test_ipc',
      'test_windows')
plant(REGION, 'deregistered_windows_stay_mapped', 'if (!holds && may_be_recalled',
      'if (false && may_be_recalled', 'test_ipc', 'test_windows')
plant(REGION, 'memory_that_is_used_recalled', 'if (++region->idle_looks >= REGION_IDLE_LOOKS)', 'if (true)',
      'test_ipc', 'test_recalled')
plant(REGION, 'memory_of_a_graph_recalled', 'region->windows == 0 && !is_held(region);',
      'region->windows == 0;', 'test_ipc', 'test_recalled')
plant('lib/backends/cuda/ipc_handle.c', 'piece_beyond_its_range_taken',
      '&& range->offset <= range->bytes - piece_bytes', '', 'test_ipc', 'test_range_handles')
plant(SHARE, 'passed_descriptor_stays', 'if (passed != NULL) *place = passed->next;', '', 'test_share',
      'test_pass')

# ---- communicators side by side

SHARED_DEVICE = 'lib/core/settings/shared_device.c'
plant('lib/core/group.c', 'communicators_in_the_order_of_calls',
      'if (group.comms == NULL || comm->comm_id >= group.last_id)', 'if (true)', 'test_api',
      'test_group_order', quick=True)
plant(SHARED_DEVICE, 'nothing_left_for_later_communicators', 'available / 2 / blocks_needed(device)',
      'available / blocks_needed(device)', 'test_shared_device', 'test_ranks_that_share')
plant(SHARED_DEVICE, 'others_of_the_split_not_counted', 'count > 1 && device->sharers > count ?', 'false ?',
      'test_shared_device', 'test_splits')
plant(SHARED_DEVICE, 'ranks_alone_beside_sharers_not_counted', '(shares ? device->use.single_blocks : 0)',
      '0', 'test_shared_device', 'test_ranks_that_share')
plant(SHARED_DEVICE, 'full_device_not_refused',
      'if (available < blocks_needed(device)) ranks->full = *device;', '',
      'test_shared_device', 'test_refusals*')

# ---- communicators that grow

GROW = 'lib/core/grow.c'
plant(GROW, 'second_grow_by_the_first_id', 'comm->grow_count += 1;', '', 'test_grow', 'test_chain',
      quick=True)
plant(GROW, 'rank_of_the_communicator_joins', '|| (uint32_t)rank < content.grown)', ')', 'test_grow',
      'test_refused')
plant('lib/core/life.c', 'unused_grow_stays', 'if (comm->grow_nonce != 0)', 'if (false)', 'test_grow',
      'test_unused')
plant('lib/core/group.c', 'grow_of_a_failed_group_stays',
      'if (result != ncclSuccess && job->call.id.grown > 0)', 'if (false)', 'test_grow', 'test_failed_group')
plant('lib/core/bootstrap/control_call.c', 'who_may_check_in_may_ask',
      'if (!served || !served->handler)', 'if (!served)', 'test_control', 'test_ask')

# ---- communicators that are suspended

SUSPEND = 'lib/core/suspend.c'
plant(SUSPEND, 'cached_plans_survive_suspension', 'calls_forget(comm);', '', 'test_suspend', 'test_memory*',
      quick=True)
plant(SUSPEND, 'suspended_connections_not_closed', 'comm->ops->device->comm_release(comm->device_comm);', '',
      'test_suspend', 'test_memory')
plant(SUSPEND, 'network_connections_survive_suspension',
      'if (remote && remote->proxies[comm->rank]) proxy_comm_release(remote->proxies[comm->rank]);', '',
      'test_suspend', 'test_calls (network)')
plant(SUSPEND, 'suspended_with_operations_unfinished',
      'if (!comm->ops->device->comm_idle(comm->device_comm))', 'if (false)', 'test_suspend', 'test_busy*')
plant('lib/backends/emu/device_ops.c', 'suspended_with_graphs', 'const bool held = comm->captured_count > 0;',
      'const bool held = false;', 'test_suspend', 'test_graph')
plant('lib/core/rendezvous/rendezvous.c', 'aborted_rank_waits_on_to_be_suspended',
      'if (ended_why) rendezvous_withdraw(comm, ended_why);', 'if (false) return ncclSuccess;',
      'test_suspend', 'test_abort*')

# ---- time

plant('lib/backends/emu/world.c', 'threads_that_cannot_run_not_waited_for',
      'const bool passed = turns_passed(&chance->turns, TURN_NS);', 'const bool passed = true;', 'test_turns',
      'test_held_thread')
plant('lib/backends/emu/world.c', 'a_thread_that_cannot_run_is_absent',
      'if (last_ns == 0 || !all_had_a_chance(&chance, last_ns)) return;', 'if (last_ns == 0) return;',
      'test_turns', 'test_held_thread_guarded')
plant('lib/base/turns.c', 'held_thread_taken_for_asleep', 'strchr("RDTt", state) == NULL',
      'strchr("RD", state) == NULL', 'test_turns', 'test_held_thread')

# ---- settings and configurations

plant('lib/core/parameters.c', 'numbers_cut_to_the_type',
      'if (*value >= lowest && *value <= highest) return ncclSuccess;', 'if (true) return ncclSuccess;',
      'test_api', 'test_parameters')
plant('lib/core/proxy/net.c', 'another_network_than_the_named_one',
      'if (strcasecmp(ops->name, name) == 0) return ncclSuccess;', 'if (true) return ncclSuccess;',
      'test_api', 'test_config')
plant('lib/core/settings/settings.c', 'channels_of_the_configuration_ignored',
      'config->nChannelsPerNetPeer != NCCL_CONFIG_UNDEF_INT', 'false', 'test_api', 'test_config')
plant('lib/core/parameters.c', 'secret_logged_with_the_settings',
      'param_is_hidden(id) ? "..." : value_text(id)', 'value_text(id)', 'test_base', 'test_param_secret')

# ---- tuner plugins

TUNER, TUNE = 'lib/core/plugins/tuner.c', 'lib/core/plan/tune.c'
plant(TUNER, 'tuner_changed_what_is_not_possible',
      'if (question_offers(question, algo, proto)) decides = true;', 'if (true) decides = true;',
      'test_tuner_answers', 'test_left', quick=True)
plant(TUNER, 'tuner_forgets', '*first = tuner->count++;', 'tuner->count++;', 'test_tuner_answers',
      'test_remembered')
plant(TUNE, 'tuner_has_more_channels_than_there_are',
      '(uint32_t)size_min(answer.channel_count, request->settings.limits.channel_count)',
      'answer.channel_count', 'test_tuner_answers', 'test_taken', quick=True)

# ---- a reduction in one hop

plant('lib/core/topology/links.c', 'sends_to_the_rank_after_the_root', '|| to == work->root;',
      '|| to == (work->root + 1) % work->rank_count;', 'test_inputs', 'test_results')
plant('lib/backends/emu/block.c', 'input_shown_to_a_root_that_has_not_mapped_it',
      'emu->remote && work->recv_count > 0 && emu_arena_offset(in, &offset)',
      'emu->remote && emu_arena_offset(in, &offset)', 'test_processes', 'test_other_algorithms')

# ---- one-sided calls

RMA, EMU_RMA = 'lib/core/rma.c', 'lib/backends/emu/rma.c'
plant(RMA, 'signals_all_have_one_number', 'call->put.number = *count + 1;', 'call->put.number = 1;',
      'test_rma', 'test_many_puts')
plant('lib/core/window.c', 'end_of_the_window_not_compared',
      'return offset <= window->bytes && bytes <= window->bytes - offset;', 'return offset <= window->bytes;',
      'test_rma', 'test_wrong_arguments')
plant('lib/core/copies_note.c', 'copies_before_the_output_may_be_written',
      'TRY(await_queue(call, false, false));', '', 'test_rma', 'test_copies')
plant(RMA, 'collectives_take_signals_of_the_program',
      'row->put.set = copies ? SIGNALS_COLLECTIVE : SIGNALS_PROGRAM;', 'row->put.set = SIGNALS_PROGRAM;',
      'test_rma', 'test_copies')
plant(EMU_RMA, 'later_signal_overtakes',
      'return __atomic_load_n(rma->signal, __ATOMIC_ACQUIRE) + 1 == rma->put.number;', 'return true;',
      'test_rma', 'test_order_of_streams')
plant('lib/backends/emu/cudart/race_comm.c', 'signal_before_its_data',
      '{read->clock, read->epoch + 1, read->stream}', '{read->clock, read->epoch, read->stream}', 'test_rma',
      'test_race_put_copy')
