// The clock and the boot of one process's machine: LD_PRELOAD of a test. WALL_OFFSET_S is added to each reading of the wall
// clock, and BOOT_ID names a file to be read in place of the kernel's name of the boot.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = (int)syscall(SYS_clock_gettime, clock, now);
  const char *offset = getenv("WALL_OFFSET_S");
  if (result == 0 && clock == CLOCK_REALTIME && offset) now->tv_sec += atoll(offset);
  return result;
}

int open64(const char *path, int flags, ...) {
  const char *boot = getenv("BOOT_ID");
  va_list more;
  va_start(more, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (boot && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) path = boot;
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
