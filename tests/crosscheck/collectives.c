/* One MPI operation, all ranks together: collectives OPERATION FILE, where the file holds each
 * rank's bytes. Each rank prints when it began and how long it took; of a star, rank 0 prints when
 * each message was there. Meant for SMPI, whose clock is the simulated one. */
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

int main(int argc, char **argv) {
  int rank, ranks, total = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int *sizes = malloc(sizeof(int) * ranks), *places = malloc(sizeof(int) * ranks);
  FILE *file = argc == 3 ? fopen(argv[2], "r") : NULL;
  if (!file) MPI_Abort(MPI_COMM_WORLD, 2);
  for (int r = 0; r < ranks; r++) {
    if (fscanf(file, "%d", &sizes[r]) != 1) MPI_Abort(MPI_COMM_WORLD, 2);
    places[r] = total;
    total += sizes[r];
  }
  fclose(file);
  char *in = calloc(total, 1), *out = calloc(total, 1);

  usleep((useconds_t)((1.0 - MPI_Wtime()) * 1e6)); /* all at one second, whatever came before */
  double start = MPI_Wtime();
  if (!strcmp(argv[1], "allreduce"))
    MPI_Allreduce(in, out, total / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(argv[1], "allgatherv"))
    MPI_Allgatherv(in, sizes[rank], MPI_CHAR, out, sizes, places, MPI_CHAR, MPI_COMM_WORLD);
  else if (!strcmp(argv[1], "star"))
    star(in, out, sizes, places, rank, ranks);
  else
    MPI_Abort(MPI_COMM_WORLD, 2);
  printf("rank %d %.12f %.12f\n", rank, start, MPI_Wtime() - start);
  MPI_Finalize();
  return 0;
}
