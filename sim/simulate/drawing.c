/* drawing.c: see drawing.h. */
#include "simulate/drawing.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/log.h"

ncclResult_t drawing_open(struct drawing *drawing, const struct drawing_ask *ask,
                          const struct cluster *cluster, const struct workload *workload) {
  memset(drawing, 0, sizeof *drawing);
  drawing->ask = ask;
  drawing->workload = workload;
  drawing->cluster = cluster;
  if (ask->perfetto) drawing->out = fopen(ask->perfetto, "we");
  if (ask->perfetto && !drawing->out)
    return log_fail(ncclSystemError, "%s cannot be written: %s", ask->perfetto, strerror(errno));
  if (ask->svg) drawing->chart = chart_open(cluster, workload);
  return ask->svg && !drawing->chart ? log_no_memory("%s: the picture", ask->svg) : ncclSuccess;
}

void drawing_net(void *context, const struct sim_net *net) {
  struct drawing *drawing = (struct drawing *)context;
  const struct workload *workload = drawing->workload;
  if (drawing->out) picture_begin(&drawing->picture, drawing->out, net, drawing->cluster->gpus);
  for (uint32_t rank = 0; drawing->out && workload && rank < workload->rank_count; rank++)
    for (uint32_t stream = 0; stream < workload->stream_count; stream++)
      if (workload->ranks[rank].stream_steps && workload->ranks[rank].stream_steps[stream] > 0)
        picture_stream(&drawing->picture, rank, stream, workload->streams[stream]);
  if (drawing->chart) chart_net(drawing->chart, net);
}

void drawing_kernel(void *context, const struct run_kernel *kernel) {
  struct drawing *drawing = (struct drawing *)context;
  if (drawing->chart) chart_kernel(drawing->chart, kernel);
  if (!drawing->out) return;
  const struct workload_call *call = &drawing->workload->calls[kernel->call];
  char name[160];
  workload_say_op(drawing->workload, call, &drawing->workload->ops[call->first_op], name, sizeof name);
  picture_kernel(&drawing->picture, name, kernel);
}

void drawing_span(void *context, const struct engine_span *span) {
  struct drawing *drawing = (struct drawing *)context;
  if (drawing->out) picture_see(&drawing->picture, span);
  if (drawing->chart) chart_span(drawing->chart, span);
}

void drawing_stuck(void *context, const struct engine_stuck *stuck) {
  struct drawing *drawing = (struct drawing *)context;
  if (drawing->out) picture_stuck(&drawing->picture, stuck);
  if (drawing->chart) chart_stuck(drawing->chart, stuck);
}

void drawing_message(void *context, const struct engine_message *message) {
  struct drawing *drawing = (struct drawing *)context;
  if (drawing->chart) chart_message(drawing->chart, message);
}

ncclResult_t drawing_close(struct drawing *drawing, ncclResult_t result, const char *title) {
  const char *perfetto = drawing->ask->perfetto;
  if (drawing->picture.net && !picture_end(&drawing->picture))
    fprintf(stderr, "tutti sim: %s has the first %u of %" PRIu64 " slices\n", perfetto, PICTURE_SPANS_MAX,
            drawing->picture.spans);
  if (drawing->out && (ferror(drawing->out) | fclose(drawing->out)) && result == ncclSuccess)
    result = log_fail(ncclSystemError, "%s cannot be written", perfetto);
  if (result == ncclSuccess && drawing->chart) result = chart_write(drawing->chart, title, drawing->ask->svg);
  chart_close(drawing->chart);
  return result;
}
