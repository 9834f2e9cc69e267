/* output.c: what runs print, and how they ended, as texts. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/text.h"
#include "run/runner.h"

bool run_passed(const struct run_end *end) {
  return !end->timed_out && WIFEXITED(end->status) && WEXITSTATUS(end->status) == 0;
}

void run_end_text(const struct run_end *end, uint64_t timeout_ns, char *out, size_t out_bytes) {
  if (end->timed_out)
    snprintf(out, out_bytes, "no end within %llu s", (unsigned long long)(timeout_ns / 1000000000));
  else if (WIFSIGNALED(end->status))
    snprintf(out, out_bytes, "signal %d, %s", WTERMSIG(end->status), strsignal(WTERMSIG(end->status)));
  else snprintf(out, out_bytes, "exit status %d", WEXITSTATUS(end->status));
}

/* The end of the output, in order, terminated, `tail` having space for it. */
static size_t tail_unroll(const struct run_output *output, char *tail) {
  const size_t bytes = output->bytes < RUN_TAIL_BYTES ? (size_t)output->bytes : RUN_TAIL_BYTES;
  const size_t first = (size_t)((output->bytes - bytes) % RUN_TAIL_BYTES);
  for (size_t i = 0; i < bytes; i++) {
    const char letter = output->tail[(first + i) % RUN_TAIL_BYTES];
    tail[i] = letter != '\0' ? letter : '?';
  }
  tail[bytes] = '\0';
  return bytes;
}

/* Copies a line; each number becomes one #, as numbers of processes and events differ between equal failures.
 */
static void line_copy(const char *line, char *out, size_t out_bytes) {
  size_t used = 0;
  for (; *line != '\0' && *line != '\n' && used + 1 < out_bytes; line++) {
    const bool digit = isdigit((unsigned char)*line);
    if (digit && used > 0 && out[used - 1] == '#') continue;
    out[used++] = digit ? '#' : *line;
  }
  out[used] = '\0';
}

/* The text of the first warning; NULL: there is none. */
static const char *warning_find(const char *text) {
  const char *found = strstr(text, "NCCL WARN ");
  return found != NULL ? found + strlen("NCCL WARN ") : NULL;
}

/* The last line with something in it. */
static const char *last_line(char *text) {
  size_t end = strlen(text);
  while (end > 0 && isspace((unsigned char)text[end - 1])) end--;
  text[end] = '\0';
  const char *line = strrchr(text, '\n');
  return line != NULL ? line + 1 : text;
}

void run_report_line(const struct run_output *output, char *out, size_t out_bytes) {
  char head[RUN_HEAD_BYTES + 1], tail[RUN_TAIL_BYTES + 1];
  const size_t bytes = output->bytes < RUN_HEAD_BYTES ? (size_t)output->bytes : RUN_HEAD_BYTES;
  for (size_t i = 0; i < bytes; i++) head[i] = output->head[i] != '\0' ? output->head[i] : '?';
  head[bytes] = '\0';
  tail_unroll(output, tail);
  const char *line = warning_find(head);
  if (line == NULL) line = warning_find(tail);
  line_copy(line != NULL ? line : last_line(tail), out, out_bytes);
}

void run_last_lines(const struct run_output *output, uint32_t lines, char *out, size_t out_bytes) {
  char tail[RUN_TAIL_BYTES + 1];
  size_t used = 0, at = tail_unroll(output, tail);
  while (at > 0 && isspace((unsigned char)tail[at - 1])) at--;
  tail[at] = '\0';
  for (; at > 0; at--)
    if (tail[at - 1] == '\n' && --lines == 0) break;
  for (const char *letter = tail + at; *letter != '\0' && used + 1 < out_bytes; letter++) {
    const bool control =
        ((unsigned char)*letter < ' ' && *letter != '\n' && *letter != '\t') || *letter == 0x7f;
    out[used++] = control ? '?' : *letter;
  }
  out[used] = '\0';
}
