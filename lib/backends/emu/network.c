#include "backends/net.h"
const struct net_ops *emu_net_ops(void) { return NULL; }
