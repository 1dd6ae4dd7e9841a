// Stop requests: SIGTERM, SIGUSR1, SIGINT and SIGHUP (a closed terminal) set a flag that long work polls; a second one ends at once, but for
// SIGUSR1, which launchers may deliver more than once.
#pragma once

namespace deltron {

void install_stop_signals();
// The signal that asked for a stop, or 0.
int stop_signal();
const char* signal_name(int number);
// Throws StopRequested if a stop was asked for. Call it wherever a user could otherwise wait.
void poll_stop(const char* during);
// For tests.
void clear_stop_signal();

}  // namespace deltron
