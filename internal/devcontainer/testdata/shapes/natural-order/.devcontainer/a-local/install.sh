#!/bin/sh
set -e
echo "installing a-local"
