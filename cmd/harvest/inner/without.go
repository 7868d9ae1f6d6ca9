//go:build !keeper

package inner

var packedKeeper, packedSentry []byte
