/* Hidden functions for release wheels, in place of those whose version in the builder's glibc or libstdc++ is newer than
   manylinux_2_28. They call the older versions, which later releases keep. scripts/release/check_wheel.py names any
   symbol that is still too new. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define OLDER(name, version) __asm__(".symver older_" #name "," #name "@" version)

struct stat;

/* 2.33: before, these called the functions below with a number of the structure's layout, 1 on x86-64. */
enum { kLayout = 1 };
int older___xstat(int, const char*, struct stat*);
int older___lxstat(int, const char*, struct stat*);
int older___fxstat(int, int, struct stat*);
int older___fxstatat(int, int, const char*, struct stat*, int);
OLDER(__xstat, "GLIBC_2.2.5");
OLDER(__lxstat, "GLIBC_2.2.5");
OLDER(__fxstat, "GLIBC_2.2.5");
OLDER(__fxstatat, "GLIBC_2.4");
HIDDEN int stat(const char* path, struct stat* out) { return older___xstat(kLayout, path, out); }
HIDDEN int lstat(const char* path, struct stat* out) { return older___lxstat(kLayout, path, out); }
HIDDEN int fstat(int file, struct stat* out) { return older___fxstat(kLayout, file, out); }
HIDDEN int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return older___fxstatat(kLayout, folder, path, out, flags);
}

/* 2.34 moved these into libc.so.6. */
void* older_dlopen(const char*, int);
void* older_dlsym(void*, const char*);
int older_dlclose(void*);
int older_pthread_once(pthread_once_t*, void (*)(void));
OLDER(dlopen, "GLIBC_2.2.5");
OLDER(dlsym, "GLIBC_2.2.5");
OLDER(dlclose, "GLIBC_2.2.5");
OLDER(pthread_once, "GLIBC_2.2.5");
HIDDEN void* dlopen(const char* path, int mode) { return older_dlopen(path, mode); }
HIDDEN void* dlsym(void* library, const char* name) { return older_dlsym(library, name); }
HIDDEN int dlclose(void* library) { return older_dlclose(library); }
HIDDEN int pthread_once(pthread_once_t* once, void (*run)(void)) { return older_pthread_once(once, run); }

/* 2.32: a hint of std::shared_ptr, for which "perhaps several threads" is always right. */
HIDDEN char __libc_single_threaded = 0;

/* 2.29: new versions without the wrappers that set errno. Both compute the same bits. */
double older_log(double);
double older_log2(double);
double older_pow(double, double);
OLDER(log, "GLIBC_2.2.5");
OLDER(log2, "GLIBC_2.2.5");
OLDER(pow, "GLIBC_2.2.5");
HIDDEN double log(double x) { return older_log(x); }
HIDDEN double log2(double x) { return older_log2(x); }
HIDDEN double pow(double x, double y) { return older_pow(x, y); }

/* GLIBCXX_3.4.30: std::condition_variable::wait, no longer noexcept. */
void older__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void*, void*);
OLDER(_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "GLIBCXX_3.4.11");
HIDDEN void _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void* condition, void* lock) {
  older__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(condition, lock);
}

/* 2.30. An older glibc waits by the time of day only: its deadline is computed from what is left. A clock that is set
   back meanwhile makes that wait longer. */
typedef int (*ClockWait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* deadline) {
  ClockWait of_system = (ClockWait)older_dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
  if (of_system != 0) return of_system(condition, mutex, clock, deadline);
  struct timespec now, end;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &end);
  const long long second = 1000000000LL;
  long long left = (deadline->tv_sec - now.tv_sec) * second + (deadline->tv_nsec - now.tv_nsec);
  if (left < 0) left = 0;
  const long long nanoseconds = end.tv_nsec + left % second;
  end.tv_sec += left / second + nanoseconds / second;
  end.tv_nsec = nanoseconds % second;
  return pthread_cond_timedwait(condition, mutex, &end);
}
