/* SPDX-License-Identifier: MIT */
/* A library that does nothing: what loading any library costs. */
int ct_test_empty;
