/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program that closes what it does not know, and what becomes of its own files. */
#ifndef CAUSEWAY_CLI_OWN_H
#define CAUSEWAY_CLI_OWN_H

/* Closes all descriptors from 3 up; how: loop, range or dup2, which puts files in their places. */
void close_all(const char *how);
/* Opens files, and sockets with something in them, under those numbers. */
void open_own(const char *how);
/* Ends the process unless all of them are as they were made: contents, offsets, what is unread. */
void check_own(const char *when);
/* As check_own, by a child made by fork(2). */
void check_child(const char *when);

#endif
