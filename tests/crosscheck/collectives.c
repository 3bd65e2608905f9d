/* One operation of all ranks: collectives OPERATION FILE [FILE], where the first file holds each
 * rank's bytes and the second how many microseconds after the common start each rank enters (none:
 * 0). Each rank prints the common start and how long after it it was done; of a star, rank 0 prints
 * when each message was there. Meant for SMPI, whose clock is the simulated one.
 *
 * The two exchanges are written out, with receives posted beforehand and sends that are waited for:
 * MPI's own buffer sends, so that a late rank may have several under way at once. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void star(char *in, char *out, const int *sizes, const int *places, int rank, int ranks) {
  if (rank) {
    MPI_Send(in, sizes[rank], MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    return;
  }
  double start = MPI_Wtime();
  MPI_Request *requests = malloc(sizeof(MPI_Request) * ranks);
  for (int q = 1; q < ranks; q++)
    MPI_Irecv(out + places[q], sizes[q], MPI_CHAR, q, 0, MPI_COMM_WORLD, &requests[q - 1]);
  for (int q = 1; q < ranks; q++) {
    int which;
    MPI_Waitany(ranks - 1, requests, &which, MPI_STATUS_IGNORE);
    printf("arrival %d %.12f\n", which + 1, MPI_Wtime() - start);
  }
  free(requests);
}

/* Sends `out` bytes to one rank and waits for `in` bytes from another. */
typedef struct {
  int to, from, out, in;
} Step;

/* Rank + 1, rank + 2, ...: a part for each, all equal. */
static int pairwise(Step *steps, const int *sizes, int rank, int ranks) {
  for (int s = 1; s < ranks; s++) {
    int to = (rank + s) % ranks, from = (rank - s + ranks) % ranks;
    steps[s - 1] = (Step){to, from, sizes[rank] / ranks, sizes[from] / ranks};
  }
  return ranks - 1;
}

/* Partners at distance 1, 2, 4, ... exchange halves, quarters, ..., and back; 2^k ranks. */
static int halving_doubling(Step *steps, const int *sizes, int rank, int ranks) {
  int count = 0, bytes = sizes[rank];
  for (int bit = 1; bit < ranks; bit *= 2) {
    bytes /= 2;
    steps[count++] = (Step){rank ^ bit, rank ^ bit, bytes, bytes};
  }
  for (int last = count - 1; last >= 0; last--) steps[count++] = steps[last];
  return count;
}

static void walk(const Step *steps, int count, char *in, char *out, int enters_us) {
  MPI_Request *receives = malloc(sizeof(MPI_Request) * count);
  for (int s = 0; s < count; s++)
    MPI_Irecv(out, steps[s].in, MPI_CHAR, steps[s].from, s, MPI_COMM_WORLD, &receives[s]);
  usleep(enters_us);
  for (int s = 0; s < count; s++) {
    MPI_Request both[2] = {MPI_REQUEST_NULL, receives[s]};
    MPI_Isend(in, steps[s].out, MPI_CHAR, steps[s].to, s, MPI_COMM_WORLD, &both[0]);
    MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
  }
  free(receives);
}

static void read_numbers(const char *path, int *numbers, int count) {
  FILE *file = fopen(path, "r");
  if (!file) MPI_Abort(MPI_COMM_WORLD, 2);
  for (int i = 0; i < count; i++)
    if (fscanf(file, "%d", &numbers[i]) != 1) MPI_Abort(MPI_COMM_WORLD, 2);
  fclose(file);
}

int main(int argc, char **argv) {
  int rank, ranks, total = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int *sizes = malloc(sizeof(int) * ranks), *places = malloc(sizeof(int) * ranks);
  int *enters_us = calloc(ranks, sizeof(int));
  if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
  read_numbers(argv[2], sizes, ranks);
  if (argc > 3) read_numbers(argv[3], enters_us, ranks);
  for (int r = 0; r < ranks; r++) {
    places[r] = total;
    total += sizes[r];
  }
  Step *steps = malloc(sizeof(Step) * 2 * ranks);
  char *in = calloc(total, 1), *out = calloc(total, 1);

  usleep((useconds_t)((1.0 - MPI_Wtime()) * 1e6)); /* all at one second, whatever came before */
  double start = MPI_Wtime();
  if (!strcmp(argv[1], "allreduce"))
    MPI_Allreduce(in, out, total / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(argv[1], "allgatherv"))
    MPI_Allgatherv(in, sizes[rank], MPI_CHAR, out, sizes, places, MPI_CHAR, MPI_COMM_WORLD);
  else if (!strcmp(argv[1], "star"))
    star(in, out, sizes, places, rank, ranks);
  else if (!strcmp(argv[1], "pairwise"))
    walk(steps, pairwise(steps, sizes, rank, ranks), in, out, enters_us[rank]);
  else if (!strcmp(argv[1], "halving_doubling"))
    walk(steps, halving_doubling(steps, sizes, rank, ranks), in, out, enters_us[rank]);
  else
    MPI_Abort(MPI_COMM_WORLD, 2);
  printf("rank %d %.12f %.12f\n", rank, start, MPI_Wtime() - start);
  MPI_Finalize();
  return 0;
}
