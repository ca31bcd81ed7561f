/* Preloaded: ends its process by SIGKILL at the instant that the file named by FATAL_INSTANT describes, once.
 *
 * Each line of the file is WHEN COUNT TEXT; they are waited for in turn, and at the last one the process dies.
 *   write   before octets with TEXT in them are written at an offset, as SQLite does, or sent, as a client of PostgreSQL
 *   sent    after octets with TEXT in them were sent, and by the same thread a COMMIT: whether it is one nobody knows
 *   commit  after octets with TEXT in them were written and synced, or sent and said to be committed, by one thread
 *   read    before a file whose path has TEXT in it is read at an offset
 * TEXT is KIND{DATA, as a journal's row has both columns; on the way to PostgreSQL the length of DATA is between them.
 * The file is removed before the process dies, so that the next one lives. Without it nothing happens.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define COMMIT "COMMIT"
#define COMMITTED "C\0\0\0\013COMMIT" /* PostgreSQL's word for it, with its length */

static int stage, seen;
static __thread int unsynced, unsent;

/* Returns the TEXT of the line that is waited for, if that is of this kind. */
static const char *awaits(const char *kind, int *count, int *last) {
  static __thread char line[512];
  char when[16], more[8];
  const char *path = getenv("FATAL_INSTANT");
  FILE *file = path ? fopen(path, "re") : NULL;
  int number = -1, begins;
  if (!file) return NULL;
  while (number < stage && fgets(line, sizeof line, file)) number++;
  *last = !fgets(more, sizeof more, file);
  fclose(file);
  if (number < stage || sscanf(line, "%15s %d %n", when, count, &begins) < 2 || strcmp(when, kind)) return NULL;
  line[strcspn(line, "\n")] = 0;
  return line + begins;
}

static void came(int count, int last) {
  if (__atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST) < count) return;
  if (last) {
    unlink(getenv("FATAL_INSTANT"));
    kill(getpid(), SIGKILL);
    pause();
  }
  seen = 0;
  stage++;
}

/* Whether octets have TEXT, with so many others between its kind and its data. */
static int has(const char *octets, size_t size, const char *text, size_t between) {
  size_t kind = strcspn(text, "{"), data = strlen(text + kind);
  const char *at = octets, *end = octets + size;
  while ((at = memmem(at, end - at, text, kind))) {
    at += kind;
    if ((size_t)(end - at) < between + data) return 0;
    if (!memcmp(at + between, text + kind, data)) return 1;
  }
  return 0;
}

ssize_t pwrite64(int fd, const void *octets, size_t size, off64_t at) {
  static ssize_t (*real)(int, const void *, size_t, off64_t);
  int count, last;
  const char *text = awaits("write", &count, &last);
  if (text && has(octets, size, text, 0)) came(count, last);
  text = awaits("commit", &count, &last);
  if (text && has(octets, size, text, 0)) unsynced = 1;
  if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
  return real(fd, octets, size, at);
}

int fdatasync(int fd) {
  static int (*real)(int);
  int count, last, failed;
  if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
  failed = real(fd);
  if (!failed && unsynced && awaits("commit", &count, &last)) {
    unsynced = 0;
    came(count, last);
  }
  return failed;
}

ssize_t send(int fd, const void *octets, size_t size, int flags) {
  static ssize_t (*real)(int, const void *, size_t, int);
  int count, last;
  ssize_t sent;
  const char *text = awaits("write", &count, &last);
  if (text && has(octets, size, text, 4)) came(count, last);
  text = awaits("sent", &count, &last);
  if (!text) text = awaits("commit", &count, &last);
  if (text && has(octets, size, text, 4)) unsent = 1;
  if (!real) real = dlsym(RTLD_NEXT, "send");
  sent = real(fd, octets, size, flags);
  if (unsent && sent == (ssize_t)size && memmem(octets, size, COMMIT, strlen(COMMIT)) && awaits("sent", &count, &last)) {
    unsent = 0;
    came(count, last);
  }
  return sent;
}

ssize_t recv(int fd, void *octets, size_t size, int flags) {
  static ssize_t (*real)(int, void *, size_t, int);
  int count, last;
  ssize_t got;
  if (!real) real = dlsym(RTLD_NEXT, "recv");
  got = real(fd, octets, size, flags);
  if (got > 0 && unsent && memmem(octets, got, COMMITTED, sizeof COMMITTED - 1) && awaits("commit", &count, &last)) {
    unsent = 0;
    came(count, last);
  }
  return got;
}

ssize_t pread64(int fd, void *octets, size_t size, off64_t at) {
  static ssize_t (*real)(int, void *, size_t, off64_t);
  char link[64], path[512] = {0};
  int count, last;
  const char *text = awaits("read", &count, &last);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (text && readlink(link, path, sizeof path - 1) > 0 && strstr(path, text)) came(count, last);
  if (!real) real = dlsym(RTLD_NEXT, "pread64");
  return real(fd, octets, size, at);
}
