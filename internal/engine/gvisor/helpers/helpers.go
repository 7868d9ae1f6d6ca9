// Package helpers contains the helper processes of the engine gvisor, for a program that starts itself as one of them.
// If other programs contain the helpers (build tag keeper), and with the race detector, it links nothing.
package helpers
