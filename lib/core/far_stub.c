#include "core/control.h"
#include "core/gather.h"
#include "core/proxy.h"
#define S(...) { return log_fail(ncclInternalError, "stub"); }
#include "base/log.h"
ncclResult_t control_use(struct sock_address *a) { (void)a; S() }
void control_leave(void) {}
ncclResult_t control_serve(uint64_t k, control_handler *h, void *a) { (void)k,(void)h,(void)a; S() }
void control_unserve(uint64_t k) { (void)k; }
ncclResult_t control_call(const struct sock_address *to, uint64_t key, const struct sock_wait *wait,
                          const void *request, uint32_t bytes, void *reply, uint32_t *reply_bytes)
{ (void)to,(void)key,(void)wait,(void)request,(void)bytes,(void)reply,(void)reply_bytes; S() }
ncclResult_t gather_open(const struct gather_call *call, struct gather **gather) { (void)call,(void)gather; S() }
ncclResult_t gather_check_in(struct gather *gather, uint32_t seat, const void *card, uint32_t card_bytes) { (void)gather,(void)seat,(void)card,(void)card_bytes; S() }
ncclResult_t gather_wait(struct gather *gather, char *reason, size_t reason_bytes) { (void)gather,(void)reason,(void)reason_bytes; S() }
const struct gather_seat *gather_seats(const struct gather *gather) { (void)gather; return 0; }
uint32_t gather_party_count(const struct gather *gather) { (void)gather; return 0; }
uint32_t gather_own_party(const struct gather *gather) { (void)gather; return 0; }
const struct sock_address *gather_address(const struct gather *gather, uint32_t party) { (void)gather,(void)party; return 0; }
ncclResult_t gather_agree(struct gather *gather, ncclResult_t own, char *reason, size_t reason_bytes) { (void)gather,(void)own,(void)reason,(void)reason_bytes; S() }
void gather_cancel(struct gather *gather, ncclResult_t code, const char *why) { (void)gather,(void)code,(void)why; }
void gather_close(struct gather *gather) { (void)gather; }
ncclResult_t gather_watch(struct gather *gather, watch_lost *lost, void *argument, struct watch **watch) { (void)gather,(void)lost,(void)argument,(void)watch; S() }
void watch_fail(struct watch *watch, uint64_t key, ncclResult_t code, const char *text) { (void)watch,(void)key,(void)code,(void)text; }
void watch_leave(struct watch *watch) { (void)watch; }
ncclResult_t proxy_comm_open(const struct proxy_comm_call *call, struct proxy_comm **comm) { (void)call,(void)comm; S() }
void proxy_comm_close(struct proxy_comm *comm) { (void)comm; }
bool proxy_comm_idle(struct proxy_comm *comm) { (void)comm; return true; }
ncclResult_t proxy_receive_open(struct proxy_comm *comm, const struct device_conn_name *name, struct net_handle *handle) { (void)comm,(void)name,(void)handle; S() }
ncclResult_t proxy_send_open(struct proxy_comm *comm, const struct device_conn_name *name, const struct net_handle *handle) { (void)comm,(void)name,(void)handle; S() }
ncclResult_t proxy_ops_create(struct proxy_comm *comm, const struct plan *plan, const uint8_t *remote, struct proxy_ops **ops) { (void)comm,(void)plan,(void)remote,(void)ops; S() }
void proxy_ops_post(struct proxy_ops *ops) { (void)ops; }
void proxy_ops_free(struct proxy_ops *ops) { (void)ops; }
