//go:build !keeper

package inner

var packedKeeper, packedSentry, packedTools, packedS3 []byte
