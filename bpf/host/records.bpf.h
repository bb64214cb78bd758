/* SPDX-License-Identifier: GPL-2.0-only */
/* The core's records with the host's parts in them. */
#ifndef TANDEM_HOST_RECORDS_BPF_H
#define TANDEM_HOST_RECORDS_BPF_H

#include "../core/kernel.bpf.h"
#include "intf.h"
#include "../core/state.bpf.h"

#endif
