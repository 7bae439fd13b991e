/* SPDX-License-Identifier: MIT */
/* A program without a dynamic loader, hence out of any drop-in's reach. */
int main(void) {
        return 0;
}
