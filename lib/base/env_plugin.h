/* env_plugin.h: NCCL's environment plugin (NCCL_ENV_PLUGIN), versions 1 and 2: it is asked for each NCCL_*
 * setting before the environment. For param.c, which is not yet able to log: faults and the plugin's own
 * messages are kept as texts. One thread at a time. */
#ifndef TUTTI_BASE_ENV_PLUGIN_H
#define TUTTI_BASE_ENV_PLUGIN_H

/* The plugin's value of a setting; NULL: it has none, or there is no plugin, which the first call loads. */
const char *env_plugin_value(const char *name);
/* "environment plugin NAME", for param_source. */
const char *env_plugin_source(void);
/* Why a plugin is left out: a sentence; NULL: none is. */
const char *env_plugin_fault(void);
/* Logs what the plugin said while the log could not be used. */
void env_plugin_report(void);

#endif
