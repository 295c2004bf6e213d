// Two bare processes that exchange vectors over TCP on this machine and sum them: the kernel's part of the time of any library.
//   tcp_exchange BYTES ITERATIONS         prints the median of one rank in us, as JSON
// One set of buffers, each rank on a core of its own, looking with epoll_wait before it receives, as libraries with
// several connections have to.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void check(int good, const char *what) {
  if (!good) {
    perror(what);
    exit(1);
  }
}

int main(int count, char **arguments) {
  if (count != 3 || atol(arguments[1]) < 4 || atol(arguments[2]) < 1) {
    fprintf(stderr, "usage: tcp_exchange BYTES ITERATIONS\n");
    return 2;
  }
  size_t bytes = strtoul(arguments[1], NULL, 10) / 4 * 4, iterations = strtoul(arguments[2], NULL, 10);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  check(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
  getsockname(listener, (void *)&address, &length);
  pid_t child = fork();
  check(child >= 0, "fork");
  int rank = child == 0, one = 1, peer = rank ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
  check(peer >= 0 && (!rank || connect(peer, (void *)&address, length) == 0), "connect");
  check(setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "setsockopt");
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(rank, &core);
  sched_setaffinity(0, sizeof core, &core);
  int queue = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN};
  check(epoll_ctl(queue, EPOLL_CTL_ADD, peer, &event) == 0, "epoll_ctl");
  size_t pages = (bytes + 4095) / 4096 * 4096;
  float *mine = aligned_alloc(4096, pages), *theirs = aligned_alloc(4096, pages), *sum = aligned_alloc(4096, pages);
  double *times = calloc(iterations, sizeof *times);
  check(mine && theirs && sum && times, "allocate");
  for (size_t i = 0; i < bytes / 4; i++) mine[i] = i % 64 + rank, theirs[i] = sum[i] = 0;
  for (size_t iteration = 0; iteration < iterations; iteration++) {
    double begun = now_us();
    size_t sent = 0, received = 0;
    while (sent < bytes || received < bytes) {
      if (sent < bytes) {
        ssize_t some = send(peer, (char *)mine + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        check(some > 0 || errno == EAGAIN, "send");
        sent += some > 0 ? some : 0;
      }
      if (received < bytes && epoll_wait(queue, &event, 1, 0) > 0) {
        ssize_t some = recv(peer, (char *)theirs + received, bytes - received, MSG_DONTWAIT);
        check(some > 0, "recv");
        received += some;
      }
    }
    for (size_t i = 0; i < bytes / 4; i++) sum[i] = mine[i] + theirs[i];
    times[iteration] = now_us() - begun;
    check(sum[bytes / 4 - 1] == 2 * ((bytes / 4 - 1) % 64) + 1, "sum");
  }
  if (!rank) {
    waitpid(child, NULL, 0);
    qsort(times, iterations, sizeof *times, ascending);
    printf("{\"bytes\":%zu,\"iterations\":%zu,\"p50_us\":%.2f}\n", bytes, iterations, times[iterations / 2]);
  }
  return 0;
}
